"""The model owner's view: all owners, trainings in progress, requests that wait, and a plan for what is left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd.accounts.book import Accounts, in_one_state
from inosgd.accounts.filter import UNIT, rooms
from inosgd.accounts.requests import Request, waiting
from inosgd.accounts.standings import Standing
from inosgd.accounts.views import described_collection
from inosgd.errors import InvalidArgumentError
from inosgd.plan import Plan
from inosgd.plan_config import VARIANTS, PlanConfig
from inosgd.planning import make_plan
from inosgd.serve.audit import Line, lines
from inosgd.serve.trainings import Seen, in_progress
from inosgd.shown import rounded_up

MOST_OWNERS = 100
"""So many are shown at once: those with the least left, or those that a search finds."""

MOST_PLANNED = 2000
"""With more owners a plan takes too long for a page; `inosgd plan --account` makes it."""


@dataclass(frozen=True)
class OwnerRow:
    """An owner in the list."""

    name: str
    state: str
    epsilon: str
    spent_percent: int
    reserved_percent: int
    left_percent: int


@dataclass(frozen=True)
class ModelView:
    """Everything that the model owner's page shows of a collection."""

    collections: tuple[str, ...]
    collection: str
    search: str
    owner_count: int
    owners: tuple[OwnerRow, ...]
    requests: tuple[tuple[Request, float, int], ...]
    trainings: tuple[Seen, ...]
    log: tuple[Line, ...]
    head: str


@in_one_state
def model_view(book: Accounts, collection: str | None, search: str) -> ModelView:
    """What the page shows of ``collection``, by default of the first; of the owners those whose name has ``search``."""
    names = tuple(book.collections())
    if not names:
        raise InvalidArgumentError("the book has no collection yet; open accounts with `inosgd account create`")
    chosen = names[0] if collection is None else collection
    found = book.collection(chosen)
    described = described_collection(book, chosen, most=None if search else MOST_OWNERS)
    standings = book.standings(found)
    chosen_owners = [name for name in described["owners"] if search.lower() in name.lower()][:MOST_OWNERS]
    rows = [_row(name, described["owners"][name], standings.get(name)) for name in chosen_owners]
    return ModelView(
        collections=names,
        collection=chosen,
        search=search,
        owner_count=found.owners,
        owners=tuple(rows),
        requests=tuple(
            (
                each,
                described_now(book, chosen, each.owner),
                standings[each.owner].entry if each.owner in standings else 0,
            )
            for each in waiting(book, found.number)
        ),
        trainings=tuple(in_progress(book, found.number)),
        log=tuple(lines(book, 30)),
        head=described["head"],
    )


def described_now(book: Accounts, collection: str, owner: str) -> float:
    """The epsilon that an owner has asked for until now."""
    return book.standing(collection, owner).budget.epsilon


def _row(name: str, each: dict[str, Any], standing: Standing | None) -> OwnerRow:
    """Shares are of the budget that the owner asked for, also while it is not in force."""
    room, is_open = each["room"], each["epsilon"] > 0
    if standing is not None and not is_open:
        budget = standing.budget
        whole = rooms(np.array([budget.epsilon]), np.array([budget.delta]), np.array([each["order"]]))
        room = float(whole[0]) * UNIT
    room = max(room, UNIT)
    spent = math.ceil(100 * each["spent"] / room)
    return OwnerRow(
        name,
        each["state"],
        f"{each['epsilon']:g}",
        spent,
        math.ceil(100 * (each["spent"] + each["reserved"]) / room) - spent,
        math.floor(100 * each["left"] / room),
    )


@dataclass(frozen=True)
class PlanRow:
    """What a plan would do to owners with the same terms."""

    owners: str
    sampling_rate: str
    clipping_threshold: str
    epsilon: str


@dataclass(frozen=True, eq=False)
class PlanView:
    """A plan for what is left."""

    plan: Plan
    noise_scale: str
    rows: tuple[PlanRow, ...]
    resting: tuple[str, ...]


@in_one_state
def plan_view(book: Accounts, collection: str, steps: int, batch: float, variant: str) -> PlanView:
    """The plan that a training would get that asks for all that is left; owners with nothing left take no part.

    Raises:
        InfeasibleError: If there is none.
    """
    _validate.one_of(VARIANTS, variant=variant)
    if not 1 <= steps <= 1_000_000:
        raise InvalidArgumentError(f"steps={steps}: give a number from 1 to 1,000,000")
    if not 0 < batch <= 1e9:
        raise InvalidArgumentError(f"batch={batch:g}: give a number greater than 0")
    found = book.collection(collection)
    if found.owners > MOST_PLANNED:
        raise InvalidArgumentError(
            f"collection={collection!r}: it has {found.owners} owners, too many for a page; use `inosgd plan --account`"
        )
    table = book.table(collection)
    left = book.left(collection, table)
    resting = [name for name, room in zip(table.names, left.divergences.tolist(), strict=True) if not room > 0]
    config = PlanConfig(steps=steps, variant=variant, expected_batch_size=batch, clipping_threshold=1.0)
    plan = make_plan(table, config, verify=False, resting=resting, rooms=left)
    return PlanView(plan, f"{plan.at(0).noise_scale:.4g}", _plan_rows(plan, set(resting)), tuple(resting))


def _plan_rows(plan: Plan, resting: set[str]) -> tuple[PlanRow, ...]:
    terms, table = plan.at(0), plan.table
    taking_part = np.array([name not in resting for name in table.names])
    pairs = np.column_stack([terms.sampling_rates, terms.clipping_thresholds])[taking_part]
    names = [name for name in table.names if name not in resting]
    spent = plan.spent[taking_part]
    rows = []
    for pair in np.unique(pairs, axis=0)[:MOST_OWNERS]:
        same = np.flatnonzero((pairs == pair).all(axis=1))
        shown = ", ".join(names[row] for row in same[:3]) + (f" and {len(same) - 3} more" if len(same) > 3 else "")
        rows.append(PlanRow(shown, f"{pair[0]:.3g}", f"{pair[1]:.3g}", rounded_up(float(spent[same].max()))))
    return tuple(rows)
