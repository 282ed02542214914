"""Changes: what an owner asks for, what would follow from it, and doing it.

Guarantee:
    `do` changes the budget of the visitor's own account and of no other; units that it shares with other owners follow
    the strictest of them (`Accounts.set_budgets`). It happens only if the owner's last change, and the request of it
    that waits, are those that the consequence was shown for. Everything that a change writes is one transaction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from inosgd import _validate
from inosgd.accounts.book import Accounts, in_one_state
from inosgd.accounts.collection import Collection
from inosgd.accounts.filter import UNIT, epsilons_of, rooms
from inosgd.accounts.requests import ask, take_back, waiting
from inosgd.accounts.standings import OPEN, PAUSED, WITHDRAWN, Standing
from inosgd.errors import AccountError, InvalidArgumentError
from inosgd.owners import Budget
from inosgd.serve.links import Visitor, note_of
from inosgd.serve.odds import best_of_100
from inosgd.serve.trainings import Seen, ledger_of, seen, spent_by
from inosgd.shown import rounded_up

LOWER, RAISE, PAUSE, RESUME, WITHDRAW, TAKE_BACK = ACTIONS = (
    "lower",
    "raise",
    "pause",
    "resume",
    "withdraw",
    "take back",
)
STOPS_USING = "At its next step it stops using your records, and goes on with those of others."

LARGEST = 1000.0
"""No owner can ask for a larger epsilon here."""


@dataclass(frozen=True)
class Wish:
    """What an owner asks for; ``epsilon`` is for lowering and raising."""

    action: str
    epsilon: float | None = None

    @classmethod
    def read(cls, action: str, epsilon: str) -> Wish:
        """From a form.

        Raises:
            InvalidArgumentError: If it is no such thing, or not a number that can be a budget.
        """
        _validate.one_of(ACTIONS, action=action)
        if action not in (LOWER, RAISE):
            return cls(action)
        try:
            value = float(epsilon.strip().replace(",", "."))
        except ValueError:
            value = math.nan
        if not 0 < value <= LARGEST:
            raise InvalidArgumentError(f"epsilon={epsilon!r}: give a number greater than 0 and at most {LARGEST:g}")
        return cls(action, value)

    @property
    def text(self) -> str:
        """The epsilon as a form carries it."""
        return "" if self.epsilon is None else repr(self.epsilon)


@dataclass(frozen=True)
class Consequence:
    """What would follow from a wish.

    Attributes:
        wish: What is asked for.
        seen: Where the owner stands now, for `do`.
        after: Where it would stand.
        now: What changes at once, in sentences.
        trainings: What each training in progress would do, by name.
        lasting: What cannot be taken back.
    """

    wish: Wish
    seen: str
    after: Standing
    now: tuple[str, ...]
    trainings: tuple[tuple[str, str], ...]
    lasting: tuple[str, ...]


@dataclass(frozen=True)
class Account:
    """An owner's account as changes look at it."""

    collection: Collection
    standing: Standing
    request: int

    @property
    def seen(self) -> str:
        """The owner's last change, and its request that waits."""
        return f"{self.standing.entry}.{self.request}"


@in_one_state
def account_of(book: Accounts, visitor: Visitor) -> Account:
    """The account of a visitor that is an owner."""
    if visitor.collection is None or visitor.owner is None:
        raise InvalidArgumentError("visitor: it is no owner")
    name = book.collection_numbered(visitor.collection).name
    requests = waiting(book, visitor.collection, visitor.owner)
    return Account(
        book.collection_of_one(name, visitor.owner),
        book.standing(name, visitor.owner),
        requests[-1].number if requests else 0,
    )


@in_one_state
def consequence(book: Accounts, visitor: Visitor, wish: Wish) -> Consequence:
    """What would follow from ``wish``; nothing is changed.

    Raises:
        InvalidArgumentError: If it cannot be asked for as things stand.
    """
    account = account_of(book, visitor)
    after = _after(account, wish)
    trainings = () if wish.action == TAKE_BACK else tuple(_trainings(book, visitor, account, wish, after))
    return Consequence(wish, account.seen, after, _now(account, wish, after), trainings, _lasting(account, wish))


def do(book: Accounts, visitor: Visitor, wish: Wish, seen: str) -> int | None:
    """Do what was confirmed: the number of the entry, or None for a request and for taking one back.

    Raises:
        AccountError: If the owner stands elsewhere than when the consequence was shown; nothing is then changed.
    """
    account = account_of(book, visitor)
    after, owner, collection = _after(account, wish), str(visitor.owner), account.collection
    if wish.action in (RAISE, TAKE_BACK):
        with book.database.writing():
            _check_same(account_of(book, visitor).seen, seen)
            if wish.action == RAISE:
                ask(book, collection.number, owner, after.budget)
            else:
                take_back(book, collection.number, owner)
            note_of(book, visitor, f"asked to {wish.action}")
        return None
    _check_same(account.seen, seen)

    def also(entry: int) -> None:
        _check_same(account_of(book, visitor).request, account.request)
        take_back(book, collection.number, owner)
        note_of(book, visitor, wish.action, entry)

    last = int(seen.partition(".")[0])
    by, state = f"link {visitor.link}", after.state
    return book.set_budgets(collection.name, {owner: after.budget}, state=state, seen=last, by=by, also=also)


def _check_same(now: object, then: object) -> None:
    if now != then:
        raise AccountError("your account was changed since you saw this; look again. Nothing was changed now")


def _after(account: Account, wish: Wish) -> Standing:
    """Where the owner would stand, or an error that says why it cannot ask for this."""
    standing, budget = account.standing, account.standing.budget
    states = {LOWER: OPEN, RAISE: OPEN, PAUSE: OPEN, RESUME: PAUSED}
    if standing.state == WITHDRAWN and wish.action != TAKE_BACK:
        raise InvalidArgumentError("you have withdrawn, and nothing is charged to you any more")
    if wish.action in states and standing.state != states[wish.action]:
        raise InvalidArgumentError("you are paused; resume first" if standing.state == PAUSED else "you are not paused")
    if wish.action == TAKE_BACK and not account.request:
        raise InvalidArgumentError("no request of yours waits")
    if wish.epsilon is not None:
        fits = wish.epsilon < budget.epsilon if wish.action == LOWER else wish.epsilon > budget.epsilon
        if not fits:
            than = "smaller" if wish.action == LOWER else "larger"
            raise InvalidArgumentError(
                f"epsilon={wish.epsilon:g}: your budget is {budget.epsilon:g}; give a {than} one"
            )
        return replace(standing, budget=Budget(epsilon=wish.epsilon, delta=budget.delta))
    return replace(standing, state={PAUSE: PAUSED, RESUME: OPEN, WITHDRAW: WITHDRAWN}.get(wish.action, standing.state))


def _now(account: Account, wish: Wish, after: Standing) -> tuple[str, ...]:
    epsilon = after.budget.epsilon
    odds = odds_of(account, after.budget)
    if wish.action == TAKE_BACK:
        return ("Your request no longer waits. Your budget stays as it is.",)
    if wish.action == RAISE:
        return (
            f"Nothing yet: the model owner is asked to accept a budget of {epsilon:g}.",
            f"Once it is accepted, trainings may use more: of 100 attempts to tell whether a record was used, at best "
            f"{odds} would succeed.",
            "Until then you can take the request back.",
        )
    if wish.action == LOWER:
        return (
            f"Your budget is {epsilon:g} from now on: of 100 attempts to tell whether a record was used, at best "
            f"{odds} succeed.",
            _left_after(account, after),
        )
    if wish.action == PAUSE:
        return ("No training is charged to you until you resume. Your budget is kept.",)
    if wish.action == RESUME:
        return (f"Your budget of {epsilon:g} is in force again, and trainings may use what is left of it.",)
    return ("No training is charged to you any more, and new trainings cannot use your records.",)


def whole_room(account: Account, budget: Budget) -> int:
    """The units that a budget allows at the account's order; at least 1, to divide by."""
    found = rooms(np.array([budget.epsilon]), np.array([budget.delta]), account.collection.orders)
    return max(int(found[0]), 1)


def odds_of(account: Account, budget: Budget) -> int:
    """So many of 100 attempts succeed at best under a budget, or by what was spent already where that is more."""
    allowed = best_of_100(budget.epsilon, budget.delta, whole_room(account, budget) * UNIT)
    return max(allowed, odds_of_spent(account.collection))


def odds_of_spent(collection: Collection) -> int:
    """So many of 100 attempts succeed at best by what was charged to the one account of ``collection``."""
    epsilon = float(epsilons_of(collection.spent, collection.deltas, collection.orders)[0])
    return best_of_100(epsilon, float(collection.deltas[0]), int(collection.spent[0]) * UNIT)


def _left_after(account: Account, after: Standing) -> str:
    """What the lowered budget would leave to trainings, those that run included, which give back and plan anew."""
    collection, percent = account.collection, _percent_left(account, after)
    if percent is not None:
        share = f"About {percent} %" if percent else "Less than 1 %"
        return f"{share} of it is left to trainings, those that run included."
    smallest = float(epsilons_of(collection.spent, collection.deltas, collection.orders)[0])
    return (
        "Nothing of it is left: no training is charged to you any more. Something is left of budgets above "
        f"{rounded_up(smallest)}, because your account was opened for a larger one."
    )


def _percent_left(account: Account, after: Standing) -> int | None:
    """The share of a lowered budget that is not spent, rounded down; None if nothing is left.

    The order stays that with which the account was opened.
    """
    room = whole_room(account, after.budget)
    left = room - int(account.collection.spent[0])
    return math.floor(100 * left / room) if left > 0 and room > 1 else None


def _trainings(
    book: Accounts, visitor: Visitor, account: Account, wish: Wish, after: Standing
) -> list[tuple[str, str]]:
    told = []
    for state in book.reservations(only_open=True):
        if state.collection == account.collection.number:
            training = seen(state)
            ledger = ledger_of(state)
            spent = None if ledger is None else spent_by(ledger, str(visitor.owner), after.budget.delta)
            none_left = wish.action == LOWER and _percent_left(account, after) is None
            told.append((training.name, STOPS_USING if none_left else _told(training, spent, wish, after)))
    return told


def _told(training: Seen, spent: float | None, wish: Wish, after: Standing) -> str:
    """What a training would do at its next step."""
    if wish.action == RAISE:
        return "Goes on as it is until the request is accepted; then it gets a new plan for what is left."
    if wish.action == PAUSE:
        return STOPS_USING
    if wish.action == RESUME:
        return "At its next step it gets a new plan, in which your records may be used again."
    if wish.action == WITHDRAW:
        return "At its next step your records leave it; what it has learnt from them so far stays in it."
    if spent is None:
        return "Where it stands cannot be seen from here. At its next step it keeps to the lowered budget, or stops."
    has = f"It has spent ε = {rounded_up(spent)} of you until now."
    if spent <= after.budget.epsilon:
        return f"{has} At its next step it gets a new plan within what is left."
    if training.published:
        return f"{has} Its model was published after step {training.published}, so that at its next step it stops."
    return f"{has} At its next step it goes back to a checkpoint that had spent no more than you allow now."


def _lasting(account: Account, wish: Wish) -> tuple[str, ...]:
    spent = account.collection.spent[0] > 0
    kept = ("What trainings have spent until now stays spent: it cannot be given back.",) if spent else ()
    published = ("Models that were published stay as they are, and so does what was promised for them.",)
    if wish.action == WITHDRAW:
        return (*kept, *published, "You cannot come back to this account: withdrawing is for good.")
    if wish.action in (RAISE, RESUME):
        return ("What trainings will spend once this is in force cannot be given back.",)
    return () if wish.action == TAKE_BACK else (*kept, *published)
