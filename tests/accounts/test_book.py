"""What a book allows and refuses, on SQLite and on PostgreSQL."""

import datetime
import sys
from dataclasses import replace

import numpy as np
import pytest

from inosgd.accounting import Exposures
from inosgd.accounting.selection import PoissonTrials
from inosgd.accounts import schema
from inosgd.accounts.book import Accounts
from inosgd.accounts.charge import Charge
from inosgd.accounts.draws import Draw
from inosgd.accounts.filter import UNIT
from inosgd.accounts.fingerprints import fingerprints
from inosgd.accounts.verification import verify_book
from inosgd.accounts.views import described_owner
from inosgd.errors import (
    AccountError,
    AccountExceededError,
    InosgdError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownOwnerError,
)
from inosgd.owners import Budget, OwnerTable
from tests.accounts.books import NAMES, TABLE, charge_of, held, new_book, plan_within, same_for_all, spent


def test_a_training_reserves_commits_and_is_refunded(url):
    with new_book(url) as book:
        plan = plan_within(book)
        draw = Draw.reserve(book, "patients", plan, block=10)
        before = held(book)
        assert min(before) > 0
        assert spent(book) == [0, 0, 0]
        ledger = draw.ledger(plan)
        for step in range(15):
            ledger.record(step, plan.at(step))
        assert draw.state.committed == 20
        assert draw.finish().state == "refunded"
        assert held(book) == [0, 0, 0]
        assert spent(book) == pytest.approx([each * UNIT * 15 / 40 for each in before])
        assert verify_book(book).findings == []


def test_a_plan_for_a_share_of_what_is_left_fits_and_the_next_has_the_rest(url):
    with new_book(url) as book:
        for _ in range(3):
            plan = plan_within(book, share=0.5)
            Draw.reserve(book, "patients", plan)
        left = book.left("patients", TABLE)
        first = book.collection().rooms * UNIT
        assert left.divergences == pytest.approx(first / 8, rel=0.01)
        with pytest.raises(AccountExceededError) as refusal:
            Draw.reserve(book, "patients", plan_within_of_before(plan))
        assert refusal.value.owner in NAMES
        assert refusal.value.left < refusal.value.asked


def plan_within_of_before(plan):
    from dataclasses import replace

    from inosgd.plan import Phase

    return replace(plan, phases=(*plan.phases, Phase(400, plan.phases[0].terms)))


def test_every_refusal_names_owner_asked_and_left(url):
    with new_book(url) as book:
        with pytest.raises(AccountExceededError, match=r"owner 'clinic': asked for .* and 0.272\d* is left") as refusal:
            book.reserve("patients", NAMES, same_for_all(0.5, 1.0, 10))
        assert (refusal.value.owner, refusal.value.order) == ("clinic", 32)
        assert held(book) == [0, 0, 0]


def test_states(url):
    with new_book(url) as book:
        ends = {}
        for taken in (0, 3, 5):
            state = book.reserve("patients", NAMES, same_for_all(0.01, 5.0, 5))
            book.commit(state.id, 5)
            ends[taken] = book.settle(state.id, taken).state
        assert ends == {0: "void", 3: "refunded", 5: "committed"}
        with pytest.raises(AccountError, match="has ended"):
            book.commit(state.id, 5)
        with pytest.raises(AccountError, match="has none"):
            book.commit("never made", 1)
        assert book.reservations(only_open=True) == []


def test_what_was_not_committed_cannot_be_settled_as_taken(url):
    with new_book(url) as book:
        state = book.reserve("patients", NAMES, same_for_all(0.01, 5.0, 5))
        book.commit(state.id, 2)
        with pytest.raises(InvalidArgumentError, match="taken=3"):
            book.settle(state.id, 3)
        with pytest.raises(InvalidArgumentError, match="releases=6"):
            book.commit(state.id, 6)


def test_owners_are_split_only_when_a_charge_tells_them_apart(url):
    table = OwnerTable(tuple("abcdef"), np.array([1.0] * 4 + [2.0] * 2), np.full(6, 1e-5), np.full(6, 10))
    with new_book(url, table) as book:
        assert len(book.collection()) == 2
        open_one = book.reserve("patients", table.names, same_for_all(0.01, 5.0, 4, 6))
        assert len(book.collection()) == 2
        rates = np.array([0.01, 0.01, 0.02, 0.0, 0.01, 0.01])
        book.reserve("patients", table.names, charge_of(Exposures(rates, np.full(6, 5.0), 3)))
        assert len(book.collection()) == 4
        book.commit(open_one.id, 4)  # made before the split, and charged to all classes that came out of it
        amounts = spent(book)
        assert amounts[0] == amounts[1] == amounts[2] == amounts[3] > 0
        assert held(book)[3] == 0 < held(book)[0] < held(book)[2]
        book.set_budgets("patients", {"b": Budget(epsilon=1.5, delta=1e-5)})
        assert len(book.collection()) == 5
        collection = book.collection()
        assert [book.class_of(collection, place) for place in range(6)] == book.members(collection).tolist()
        assert verify_book(book).findings == []


def test_many_owners_of_few_budgets_are_few_classes(tmp_path):
    count, kinds = 20_000, 50
    names = tuple(f"owner {number}" for number in range(count))
    budgets = np.linspace(0.5, 4.0, kinds)[np.arange(count) % kinds]
    table = OwnerTable(names, budgets, np.full(count, 1e-6), np.ones(count))
    with new_book(f"sqlite:///{tmp_path}/a.db", table) as book:
        for rate in (1e-4, 2e-4):
            charge = charge_of(Exposures(rate * budgets, np.full(count, 4.0), 5))
            state = book.reserve("patients", names, charge)
            assert book.array(state.entry, "prices").shape == (kinds, 1)
            assert book.array(state.entry, "members") is None  # nothing is written for each owner
            book.commit(state.id, 5)
        owner = described_owner(book, "patients", "owner 777")
        place = book.place(book.collection(), "owner 777")
        assert owner["spent"] == pytest.approx(spent(book)[place])
        assert owner["epsilon"] == budgets[777]
        assert verify_book(book).findings == []


def test_rows_of_a_plan_are_matched_by_name(url):
    with new_book(url) as book:
        book.reserve(
            "patients", ("registry", "clinic"), charge_of(Exposures(np.array([0.02, 0.01]), np.full(2, 5.0), 5))
        )
        clinic, hospital, registry = held(book)
        assert 0 == hospital < clinic
        assert registry > 0
        with pytest.raises(UnknownOwnerError, match="'nobody'"):
            book.reserve("patients", ("nobody",), same_for_all(0.01, 5.0, 1, 1))


def test_a_lowered_budget_stops_what_was_reserved_and_keeps_what_was_spent(url):
    with new_book(url) as book:
        plan = plan_within(book, share=1.0, steps=40)
        draw = Draw.reserve(book, "patients", plan, block=5)
        ledger = draw.ledger(plan)
        for step in range(20):
            ledger.record(step, plan.at(step))
        before = spent(book)
        book.set_budgets("patients", {"hospital": Budget(epsilon=0.55, delta=1e-5)})
        with pytest.raises(AccountExceededError) as refusal:
            for step in range(20, 40):
                ledger.record(step, plan.at(step))
        assert refusal.value.owner == "hospital"
        taken = ledger.steps
        assert draw.finish().committed == taken
        assert spent(book)[0] == pytest.approx(before[0] * taken / 20)
        assert book.left("patients", TABLE).divergences[1] < 0.1
        assert verify_book(book).findings == []


def test_a_raised_budget_allows_more(url):
    with new_book(url) as book:
        Draw.reserve(book, "patients", plan_within(book, share=1.0))
        with pytest.raises(AccountExceededError):
            book.reserve("patients", NAMES, same_for_all(0.1, 4.0, 5))
        book.set_budgets("patients", dict.fromkeys(NAMES, Budget(epsilon=6.0, delta=1e-5)))
        book.reserve("patients", NAMES, same_for_all(0.1, 4.0, 5))
        assert verify_book(book).findings == []


def test_a_release_that_was_not_reserved_is_refused(url):
    with new_book(url) as book:
        plan, other = plan_within(book, share=0.3), plan_within(book, share=0.5)
        ledger = Draw.reserve(book, "patients", plan).ledger(plan)
        with pytest.raises(AccountError, match="not what was reserved"):
            ledger.record(0, other.at(0))
        assert ledger.steps == 0


def test_a_tuning_is_one_release(url):
    with new_book(url) as book:
        plan = plan_within(book, share=0.2)
        charge = Charge.of_selection([plan, plan], PoissonTrials(3.0))
        state = book.reserve("patients", NAMES, charge, purpose="tuning")
        assert state.releases == (1,)
        book.commit(state.id, 1)
        assert book.settle(state.id, 1).state == "committed"
        assert min(spent(book)) > 0
        assert verify_book(book).findings == []


def test_looks_are_booked_without_a_charge(url):
    with new_book(url) as book:
        for purpose in ("compare", "lira", "compare"):
            book.look("patients", purpose)
        assert book.looks(book.collection()) == {"compare": 2, "lira": 1}
        assert spent(book) == [0, 0, 0]


def test_the_same_units_under_another_name_are_refused_unless_acknowledged(url):
    key = bytes(range(32))
    with Accounts.create(url) as book:
        book.open_collection("patients", TABLE, fingerprints=fingerprints(key, [f"row {k}" for k in range(100)]))
        again = fingerprints(key, [f"row {k}" for k in range(90, 200)])
        with pytest.raises(AccountError, match="10 of its units are in collection 'patients'"):
            book.open_collection("people", TABLE, fingerprints=again)
        book.open_collection("people", TABLE, fingerprints=again, acknowledged=["patients"])
        other_key = fingerprints(bytes(32), [f"row {k}" for k in range(100)])
        book.open_collection("not seen", TABLE, fingerprints=other_key)  # what this cannot see
        assert book.collections() == ["patients", "people", "not seen"]
        assert verify_book(book).findings == []


def test_a_programme_runs_as_declared(url):
    with new_book(url) as book:
        first, second = same_for_all(0.05, 4.0, 20), same_for_all(0.02, 3.0, 30)
        too_much = same_for_all(0.5, 1.0, 50)
        with pytest.raises(AccountError, match=r"'clinic'.* asks for"):
            book.declare("patients", NAMES, [first, too_much])
        book.declare("patients", NAMES, [first, second])
        with pytest.raises(AccountError, match="declared before"):
            book.declare("patients", NAMES, [first])
        state = book.reserve("patients", NAMES, second)
        book.commit(state.id, 10)
        assert book.settle(state.id, 7).state == "refunded"  # the rest is forfeited
        with pytest.raises(AccountError, match="not one that the collection's programme has left"):
            book.reserve("patients", NAMES, second)
        with pytest.raises(AccountError, match="programme"):
            book.reserve("patients", NAMES, same_for_all(0.001, 9.0, 1))
        book.reserve("patients", NAMES, first)
        assert verify_book(book).findings == []


def test_a_clock_that_goes_back_is_refused(url):
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    times = {"now": now}
    with new_book(url, clock=lambda: times["now"]) as book:
        times["now"] = now - datetime.timedelta(seconds=5)
        book.look("patients", "compare")  # a clock that was set a little: entries stay in order
        times["now"] = now - datetime.timedelta(hours=1)
        with pytest.raises(AccountError, match="set the clock right"):
            book.look("patients", "compare")
        assert len(book.entries()) == 2
        assert verify_book(book).findings == []


def test_books_are_made_once_and_opened_where_they_are(url):
    new_book(url).close()
    with pytest.raises(InvalidArgumentError, match=r"exists|already"):
        Accounts.create(url)
    with Accounts.open(url) as book:
        assert book.collection().name == "patients"
        with pytest.raises(InvalidArgumentError, match="there is no such one"):
            book.collection("people")
        with pytest.raises(InvalidArgumentError, match="there is one already"):
            book.open_collection("patients", TABLE)


def test_an_older_book_is_migrated_and_a_newer_one_refused(url, monkeypatch):
    new_book(url).close()
    more = (*schema.MIGRATIONS, ("CREATE TABLE later (number {big})",))
    monkeypatch.setattr(schema, "MIGRATIONS", more)
    with Accounts.open(url) as book:
        assert book._database.has("later")
        assert book.collection().name == "patients"
    monkeypatch.undo()
    with pytest.raises(InvalidArgumentError, match="account book"):
        Accounts.open(url)


@pytest.mark.parametrize("bad", ["accounts.db", "mysql://x/y", "sqlite:///"])
def test_other_urls_are_refused(bad):
    with pytest.raises(InvalidArgumentError, match="give sqlite"):
        Accounts.open(bad)


def test_a_server_needs_an_extra_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"inosgd\[accounts\]"):
        Accounts.open("postgresql://localhost/book")


def test_a_server_that_does_not_answer_is_named(tmp_path):
    pytest.importorskip("psycopg")
    with pytest.raises(InosgdError, match="cannot be reached"):
        Accounts.open(f"postgresql:///book?host={tmp_path}")


def test_a_book_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(InvalidArgumentError, match="inosgd account create"):
        Accounts.open("sqlite:///missing.db", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text.db").write_text("this is not a database, however long it may be" * 50)
    with pytest.raises(InvalidArgumentError, match="cannot be read as a book"):
        Accounts.open("sqlite:///text.db", folder=tmp_path)


def test_orders_may_be_chosen_when_accounts_open(url):
    with Accounts.create(url) as book:
        assert book.open_collection("all alike", TABLE, orders=8).orders.tolist() == [8, 8, 8]
        own = book.open_collection("each its own", TABLE, orders=np.array([64, 16, 4]))
        assert own.orders[book.members(own)].tolist() == [64, 16, 4]
        with pytest.raises(InvalidArgumentError, match="whole orders"):
            book.open_collection("none", TABLE, orders=1)
        assert verify_book(book).findings == []


def test_infinite_budgets_have_no_account(url):
    with Accounts.create(url) as book, pytest.raises(InvalidArgumentError, match="finite budget"):
        book.open_collection("patients", OwnerTable(("a",), np.array([np.inf]), np.array([1e-5]), np.array([3])))


def test_trainings_that_protect_something_else_draw_on_no_account(url):
    patients = replace(TABLE, unit="patient")
    with new_book(url, patients) as book:
        assert book.table().unit == "patient"
        plan = plan_within(book, patients)
        for refused in (lambda: book.left("patients", TABLE), lambda: Draw.reserve(book, "patients", rows_of(plan))):
            with pytest.raises(AccountError, match="protect each patient, and those of this training each example"):
                refused()
        Draw.reserve(book, "patients", plan)


def rows_of(plan):
    return replace(plan, table=replace(plan.table, unit="example"))


def test_accounts_of_shared_units_follow_the_strictest_of_their_owners(url):
    names = ("a", "b", "a & b")
    table = OwnerTable(names, np.array([1.0, 2.0, 1.0]), np.array([1e-5, 1e-6, 1e-6]), np.full(3, 50), "patient")
    with new_book(url, table) as book:
        book.set_budgets("patients", {"b": Budget(epsilon=0.5, delta=1e-6)})
        assert book.table("patients").epsilons.tolist() == [1.0, 0.5, 0.5]
        book.set_budgets("patients", {"b": Budget(epsilon=4.0, delta=1e-5)})
        assert book.table().budget(2) == Budget(epsilon=1.0, delta=1e-5)
        with pytest.raises(InvalidArgumentError, match="change the budgets of a and b"):
            book.set_budgets("patients", {"a & b": Budget(epsilon=9.0, delta=1e-5)})
        book.open_collection("rows", replace(table, unit="example"))
        book.set_budgets("rows", {"b": Budget(epsilon=0.5, delta=1e-6)})
        assert book.table("rows").epsilons.tolist() == [1.0, 0.5, 1.0]  # an owner that happens to be called so
        assert verify_book(book).findings == []


def test_a_budget_that_is_lowered_stops_a_programme(url):
    with new_book(url) as book:
        charge = same_for_all(0.05, 4.0, 20)
        book.declare("patients", NAMES, [charge, charge])
        state = book.reserve("patients", NAMES, charge)
        book.commit(state.id, 5)
        book.set_budgets("patients", {"registry": Budget(epsilon=2.9, delta=1e-5)})
        book.commit(state.id, 6)  # it still allows the whole programme
        book.set_budgets("patients", {"clinic": Budget(epsilon=0.05, delta=1e-5)})
        with pytest.raises(AccountError, match=r"'clinic': its budget was lowered to epsilon=0\.05"):
            book.commit(state.id, 10)
        with pytest.raises(AccountError, match="'clinic': its budget was lowered"):
            book.reserve("patients", NAMES, charge)
        book.set_budgets("patients", {"clinic": Budget(epsilon=0.5, delta=1e-5)})
        book.commit(state.id, 10)
        assert verify_book(book).findings == []


@pytest.mark.parametrize("releases", [64, 90, 128, 10**6, 10**12])
def test_a_charge_that_64_bits_do_not_hold_is_refused(url, releases):
    with new_book(url) as book:
        orders = book.collection().orders
        for price in (2**57, 3 * 2**56, 2**58, 2**59):  # several times as much is negative, or 0, in 64 bits
            steps = charge_of(Exposures(np.ones(3), np.sqrt(orders / (2 * price * UNIT)), releases))
            with pytest.raises(AccountExceededError):
                book.reserve("patients", NAMES, steps)
        many = charge_of(*[Exposures(np.ones(3), np.sqrt(orders / (2 * 2**58 * UNIT)), 1)] * 80)
        with pytest.raises(AccountExceededError):
            book.reserve("patients", NAMES, many)
        assert held(book) == [0, 0, 0]


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps"),
    [(np.nan, 4.0, 5), (-0.1, 4.0, 5), (1.1, 4.0, 5), (0.1, np.nan, 5), (0.1, 0.0, 5), (0.1, -4.0, 5), (0.1, 4.0, -5)],
)
def test_what_is_no_mechanism_has_no_price(rate, multiplier, steps):
    with pytest.raises(InvalidArgumentError, match=r"price|steps=-5"):
        same_for_all(rate, multiplier, steps)


@pytest.mark.parametrize("names", [("clinic",), ("clinic", "clinic", "registry"), (*NAMES, "clinic")])
def test_every_row_of_a_charge_has_an_owner_of_its_own(url, names):
    with new_book(url) as book:
        with pytest.raises(InvalidArgumentError, match="name the owner of each row, once"):
            book.reserve("patients", names, same_for_all(0.01, 4.0, 5))
        assert held(book) == [0, 0, 0]
