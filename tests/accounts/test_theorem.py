"""The filter against adaptive adversaries: exact divergences, and any interleaving judged by a fresh accountant."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.accounting import Exposures
from inosgd.accounting.reference import reference_divergences
from inosgd.accounts.book import Accounts
from inosgd.accounts.filter import UNIT
from inosgd.accounts.verification import verify_book
from inosgd.errors import AccountError, AccountExceededError
from inosgd.owners import Budget, OwnerTable
from tests.accounts.books import charge_of, new_book
from tests.properties import tries

GRID, STEP = np.linspace(-12.0, 14.0, 4001, retstep=True)


def joint_divergence(first: float, second, order: float) -> float:
    """D_α(Q || P) of two Gaussian releases, the second chosen in view of the first: Q = N(0, 1), P = N(1 / z, 1).

    The moment E_P[(Q / P)^α] of the second is exp(α (α - 1) / (2 z²)), whatever z, so that one integral is left.
    """
    log_q, log_p = -(GRID**2) / 2, -((GRID - 1 / first) ** 2) / 2
    later = np.array([order * (order - 1) / (2 * second(y) ** 2) for y in GRID.tolist()])
    logs = order * log_q + (1 - order) * log_p + later - math.log(math.sqrt(2 * math.pi))
    top = logs.max()
    return (top + math.log(np.exp(logs - top).sum() * STEP)) / (order - 1)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9), st.floats(0.05, 0.95), st.sampled_from([2, 4, 8]))
def test_whatever_is_chosen_in_view_of_outcomes_the_room_bounds_the_divergence(uses, share, order):
    room = 0.5
    first = math.sqrt(order / (2 * share * room))

    def second(outcome: float) -> float:
        """Any part of what is left, by the interval that the first outcome fell into."""
        part = uses[int(np.clip((outcome + 3) / 6 * len(uses), 0, len(uses) - 1))]
        return math.sqrt(order / (2 * max(part * (1 - share) * room, 1e-12)))

    assert joint_divergence(first, second, order) <= room * (1 + 1e-6)


def test_keeping_to_the_room_on_average_only_would_be_noticed():
    order, room = 4, 0.5
    first = math.sqrt(order / (2 * 0.5 * room))

    def second(outcome: float) -> float:
        """Half of what is left, on average: nothing after one half of the outcomes and all of it twice after others."""
        return math.sqrt(order / (2 * room)) if outcome < 0 else 1e9

    assert joint_divergence(first, second, order) > room


def test_a_budget_that_is_lowered_in_view_of_outcomes_does_not_lower_what_holds_for_all_of_them():
    """No course takes more than the documentation says, and all courses are within the budget before."""
    order, before, lowered = 4, 0.5, 0.25
    first = math.sqrt(order / (2 * lowered))  # the first release takes all that the lowered budget allows

    def second(outcome: float) -> float:
        """Nothing more after outcomes at which the owner lowers its budget; all that is left after the others."""
        return 1e9 if outcome > 0.5 else math.sqrt(order / (2 * (before - lowered)))

    assert lowered < joint_divergence(first, second, order) <= before * (1 + 1e-6)
    assert joint_divergence(first, lambda _: 1e9, order) <= lowered * (1 + 1e-6)  # whatever the outcome: the control


OWNERS = ("a", "b", "c", "d")
TABLE = OwnerTable(OWNERS, np.array([0.5, 1.0, 1.0, 4.0]), np.full(4, 1e-5), np.full(4, 50))
NOTHING = Budget(epsilon=1e-12, delta=1e-12)
"""Nothing may be charged to an owner that is paused; a budget of 0 cannot be written, and this has no room either."""
MOVES = ("reserve", "greedy", "commit", "settle", "crash", "budget", "pause", "withdraw")
rates = st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0])
multipliers = st.sampled_from([1.0, 2.0, 5.0, 20.0])


class Judge:
    """An accountant that shares nothing with the book: what was charged, owner by owner, by dp-accounting."""

    def __init__(self, book: Accounts) -> None:
        collection = book.collection()
        self.orders = dict(zip(OWNERS, collection.orders[book.members(collection)].tolist(), strict=True))
        self.budgets = {name: budget for name, budget, _ in TABLE}
        self.taken: dict[str, dict[str, int]] = defaultdict(dict)
        self.mechanisms: dict[str, dict[str, tuple[float, float]]] = {}
        self.refusals: list[AccountExceededError] = []
        self.withdrawn: set[str] = set()

    def change(self, book: Accounts, owner: str, budget: Budget, state: str = "open") -> None:
        """Another budget, a pause (which the next budget ends) or a withdrawal, which is for good."""
        asked = budget if state == "open" else Budget(epsilon=4.0, delta=1e-5)
        if owner in self.withdrawn:
            with pytest.raises(AccountError, match="has withdrawn, for good"):
                book.set_budgets("patients", {owner: asked}, state=state)
            return
        book.set_budgets("patients", {owner: asked}, state=state)
        self.budgets[owner] = budget
        self.withdrawn |= {owner} if state == "withdrawn" else set()

    def check(self, charged: str) -> None:
        """All owners that the training ``charged`` charges are within the budgets in force."""
        for owner, budget in self.budgets.items():
            if self.mechanisms[charged][owner][0] == 0:
                continue
            order = self.orders[owner]
            releases = [
                (*self.mechanisms[name][owner], taken[owner]) for name, taken in self.taken.items() if taken[owner]
            ]
            divergence = float(reference_divergences(releases, [order])[0])
            room = budget.epsilon - math.log1p(-1 / order) + math.log(budget.delta * order) / (order - 1)
            assert divergence <= max(room, 0.0) * (1 + 1e-9) + 1e-9, (owner, divergence, room)

    def charged(self, name: str, releases: int, *, check: bool = True) -> None:
        self.taken[name] = dict.fromkeys(OWNERS, releases)
        if check:
            self.check(name)


def play(data: st.DataObject, book: Accounts, steps: int) -> Judge:
    """Trainings that are chosen in view of what is left, changes of budgets and failures, in any order."""
    judge, running = Judge(book), {}
    for _ in range(steps):
        move = data.draw(st.sampled_from(MOVES))
        if move in ("reserve", "greedy"):
            q = np.array([data.draw(rates) for _ in OWNERS])
            z = np.array([data.draw(multipliers) for _ in OWNERS])
            count = data.draw(st.integers(1, 30))
            if move == "greedy":  # as many steps as the last of the room seems to allow, and one more
                left = book.left("patients", TABLE)
                prices = [
                    float(reference_divergences([(*pair, 1)], [order])[0])
                    for *pair, order in zip(q, z, left.orders, strict=True)
                ]
                most = [room / price for room, price in zip(left.divergences, prices, strict=True) if price > 0]
                count = min(int(min(most, default=0)) + 1, 10_000)
            try:
                state = book.reserve("patients", OWNERS, charge_of(Exposures(q, np.where(q > 0, z, np.inf), count)))
            except AccountExceededError as refusal:
                judge.refusals.append(refusal)
                continue
            running[state.id] = state
            judge.mechanisms[state.id] = dict(zip(OWNERS, zip(q.tolist(), z.tolist(), strict=True), strict=True))
        elif move == "budget":
            owner = data.draw(st.sampled_from(OWNERS))
            epsilon, delta = data.draw(st.sampled_from([0.1, 0.4, 1.0, 3.0])), data.draw(st.sampled_from([1e-5, 1e-7]))
            judge.change(book, owner, Budget(epsilon=epsilon, delta=delta))
        elif move in ("pause", "withdraw"):
            owner = data.draw(st.sampled_from(OWNERS))
            judge.change(book, owner, NOTHING, state={"pause": "paused", "withdraw": "withdrawn"}[move])
        elif running:
            name = data.draw(st.sampled_from(sorted(running)))
            state = running[name]
            if move == "commit":
                wanted = data.draw(st.integers(state.committed, state.total))
                if wanted == state.committed:  # nothing new: another process may draw on the same reservation
                    with pytest.raises(AccountError, match="committed already"):
                        book.commit(name, wanted)
                    continue
                try:
                    running[name] = book.commit(name, wanted)
                except AccountExceededError as refusal:
                    judge.refusals.append(refusal)
                    continue
                judge.charged(name, wanted)
            else:  # an end, or a crash that is settled by a ledger with some of what was committed
                taken = state.committed if move == "settle" else data.draw(st.integers(0, state.committed))
                book.settle(name, taken)
                judge.charged(name, taken, check=False)
                del running[name]
    return judge


@given(st.data())
@tries(25)
def test_any_interleaving_keeps_every_owner_within_the_budget_in_force(data):
    with tempfile.TemporaryDirectory() as folder, new_book(f"sqlite:///{Path(folder)}/a.db", TABLE) as book:
        judge = play(data, book, 25)
        assert verify_book(book).findings == []
        assert all(refusal.owner in OWNERS and refusal.left < refusal.asked for refusal in judge.refusals)
        collection = book.collection()
        spent = collection.spent[book.members(collection)] * UNIT
        for owner, amount in zip(OWNERS, spent.tolist(), strict=True):
            releases = [(*judge.mechanisms[n][owner], t[owner]) for n, t in judge.taken.items() if t[owner]]
            exact = float(reference_divergences(releases, [judge.orders[owner]])[0])
            assert amount >= exact * (1 - 1e-6) - 1e-9
            assert amount <= exact * (1 + 1e-5) + 1e-8
        for state in book.reservations(only_open=True):
            book.settle(state.id, state.committed)
        assert (book.collection().held == 0).all()


@given(data=st.data())
@tries(10)
def test_on_postgresql_as_well(data, postgres):
    with new_book(postgres.new_database(), TABLE) as book:
        play(data, book, 12)
        assert verify_book(book).findings == []


def test_a_filter_that_lets_everything_through_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Accounts, "_refuse", lambda *_: None)
    with new_book(f"sqlite:///{tmp_path}/a.db", TABLE) as book:
        judge = Judge(book)
        state = book.reserve("patients", OWNERS, charge_of(Exposures(np.full(4, 0.3), np.full(4, 1.0), 30)))
        judge.mechanisms[state.id] = dict.fromkeys(OWNERS, (0.3, 1.0))
        book.commit(state.id, 30)
        with pytest.raises(AssertionError):
            judge.charged(state.id, 30)
        assert any("is left" in finding for finding in verify_book(book).findings)
