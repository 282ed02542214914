"""The owner's view: what is promised to it, what was spent and what is left, in plain words.

Shares are of the whole budget, as the Rényi filter counts it: what was spent is rounded up, what is left down, and what
is reserved is the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inosgd.accounts.book import Accounts, in_one_state
from inosgd.accounts.collection import Collection
from inosgd.accounts.filter import UNIT, epsilons_of
from inosgd.accounts.requests import Request, waiting
from inosgd.accounts.standings import OPEN, Standing
from inosgd.accounts.views import owner_history
from inosgd.analysis.score import score_named
from inosgd.owners import plural
from inosgd.serve.changes import account_of, odds_of, odds_of_spent, whole_room
from inosgd.serve.links import Visitor
from inosgd.serve.trainings import name_of, public_results
from inosgd.shown import rounded_up


@dataclass(frozen=True)
class Spending:
    """What one training has spent on one day: a share of the whole budget in percent, negative if it gave back more."""

    day: str
    training: str
    releases: int
    percent: str


@dataclass(frozen=True)
class Promise:
    """A budget or what was spent of it, in words and odds."""

    epsilon: str
    delta: str
    of_100: int


@dataclass(frozen=True)
class OwnerView:
    """Everything that an owner's page shows."""

    owner: str
    collection: str
    unit: str
    units: str
    standing: Standing
    promise: Promise
    was_larger: bool
    spent: Promise
    spent_percent: int
    reserved_percent: int
    left_percent: int
    spending: tuple[Spending, ...]
    budgets: tuple[tuple[str, str], ...]
    request: Request | None
    results: tuple[dict[str, Any], ...]
    head: str


@in_one_state
def owner_view(book: Accounts, visitor: Visitor) -> OwnerView:
    """What the page of an owner shows."""
    account = account_of(book, visitor)
    collection, standing, owner = account.collection, account.standing, str(visitor.owner)
    unit = str(book.entries(collection.number, "opened")[0].fields["unit"])
    room = whole_room(account, standing.budget)
    spent, held = int(collection.spent[0]), int(collection.held[0])
    states = {state.id: state for state in book.reservations() if state.collection == collection.number}
    history = owner_history(book, collection.name, owner)
    requests = waiting(book, collection.number, owner)
    by_run = {state.run: state for state in states.values() if state.run is not None}
    results = (public_results(state, owner) for state in by_run.values())
    spent_percent = math.ceil(100 * spent / room)
    reserved = math.ceil(100 * (spent + held) / room) - spent_percent if standing.state == OPEN else 0
    return OwnerView(
        owner=owner,
        collection=collection.name,
        unit=unit,
        units=plural(unit),
        standing=standing,
        promise=Promise(
            f"{standing.budget.epsilon:g}", f"{standing.budget.delta:g}", odds_of(account, standing.budget)
        ),
        was_larger=any(each.get("epsilon", 0.0) > standing.budget.epsilon for each in history),
        spent=_spent(collection),
        spent_percent=spent_percent,
        reserved_percent=reserved,
        left_percent=math.floor(100 * int(collection.left[0]) / room),
        spending=_spending(history, {name: name_of(state) for name, state in states.items()}, room * UNIT),
        budgets=_budgets(history),
        request=requests[-1] if requests else None,
        results=tuple(_shown(result) for result in results if result is not None),
        head="{}:{}".format(*book.head),
    )


def _spent(collection: Collection) -> Promise:
    epsilon = float(epsilons_of(collection.spent, collection.deltas, collection.orders)[0])
    return Promise(rounded_up(epsilon), f"{float(collection.deltas[0]):g}", odds_of_spent(collection))


def _spending(history: list[dict[str, Any]], names: dict[str, str], room: float) -> tuple[Spending, ...]:
    """By day and training, the newest first; what was given back is taken off the day on which it was.

    A training that went on by another plan has several reservations, and is one training here.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    taken: dict[str, int] = {}
    for entry in history:
        if entry["kind"] in ("committed", "settled"):
            name = entry["reservation"]
            added = sums.setdefault((entry["time"][:10], names.get(name, name[:8])), [0.0, 0])
            added[0] += entry["change"]
            added[1] += entry["releases"] - taken.get(name, 0)
            taken[name] = entry["releases"]
    rows = [
        Spending(day, name, int(releases), _percent(change / room))
        for (day, name), (change, releases) in sums.items()
        if change
    ]
    return tuple(reversed(rows))


def _percent(share: float) -> str:
    return f"{math.ceil(1000 * share) / 10:g}"


def _budgets(history: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The days on which the budget in force was another one, the newest first."""
    found: list[tuple[str, str]] = []
    for entry in history:
        if "epsilon" in entry:
            words = f"{entry['epsilon']:g}" if entry["epsilon"] > 0 else "nothing more allowed"
            if not found or found[-1][1] != words:
                found.append((entry["time"][:10], words))
    return tuple(reversed(found))


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    score = score_named(result["scored_by"])
    own = None if result["own"] is None else score.shown(result["own"])
    return {**result, "overall": score.shown(result["overall"]), "own": own}
