"""Small books for tests."""

from __future__ import annotations

import numpy as np

from inosgd.accounting import Exposures
from inosgd.accounts.book import Accounts
from inosgd.accounts.charge import Charge
from inosgd.accounts.filter import UNIT
from inosgd.owners import OwnerTable
from inosgd.planning import PlanConfig, make_plan

NAMES = ("clinic", "hospital", "registry")
TABLE = OwnerTable(NAMES, np.array([0.5, 1.0, 3.0]), np.full(3, 1e-5), np.array([300, 300, 400]))


def new_book(url: str, table: OwnerTable = TABLE, **settings) -> Accounts:
    book = Accounts.create(url, **settings)
    book.open_collection("patients", table)
    return book


def charge_of(*exposures: Exposures) -> Charge:
    """A training, from rates, multipliers and steps."""
    columns = [column for rates, zs, _ in exposures for column in (rates, zs)]
    return Charge(np.column_stack(columns).astype(float), (tuple(steps for *_, steps in exposures),))


def same_for_all(rate: float, multiplier: float, steps: int, owners: int = 3) -> Charge:
    return charge_of(Exposures(np.full(owners, rate), np.full(owners, multiplier), steps))


def spent(book: Accounts, name: str = "patients") -> list[float]:
    """In units of divergence, owner by owner."""
    collection = book.collection(name)
    return (collection.spent[book.members(collection)] * UNIT).tolist()


def held(book: Accounts, name: str = "patients") -> list[int]:
    collection = book.collection(name)
    return collection.held[book.members(collection)].tolist()


def plan_within(book: Accounts, table: OwnerTable = TABLE, share: float = 0.5, steps: int = 40, **asked):
    usual = {"steps": steps, "variant": "scale", "expected_batch_size": 100, "clipping_threshold": 1.0}
    return make_plan(
        table, PlanConfig(**(usual | asked)), verify=False, rooms=book.left("patients", table, share=share)
    )
