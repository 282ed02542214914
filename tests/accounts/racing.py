"""Races: processes that go for the last of a budget at the same moment, many times."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inosgd.accounting import Exposures
from inosgd.accounts.book import Accounts
from inosgd.accounts.charge import Charge
from inosgd.accounts.verification import verify_book
from inosgd.errors import AccountExceededError
from inosgd.owners import OwnerTable
from tests.accounts.books import charge_of

RATE, MULTIPLIER = 0.05, 2.0
LONGEST = 60.0
"""Seconds after which a process counts as stuck."""


def table() -> OwnerTable:
    return OwnerTable(("strict", "liberal"), np.array([1.0, 4.0]), np.full(2, 1e-5), np.array([50, 50]))


@dataclass
class Races:
    """What was seen: how many attempts were allowed and refused, and what went wrong."""

    times: int
    processes: int
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def charge(book: Accounts, allowed: int) -> Charge:
    """So many steps that ``allowed`` trainings fit into the budget of the strict owner, and not one more."""
    collection = book.collection("race 0")
    one = charge_of(Exposures(np.full(1, RATE), np.full(1, MULTIPLIER), 1))
    price, room = int(one.prices(collection.orders[:1])[0, 0]), int(collection.rooms[0])
    steps = room // (price * allowed)
    assert room // (price * steps) == allowed
    return charge_of(Exposures(np.full(2, RATE), np.full(2, MULTIPLIER), steps))


def race(url: str, times: int, processes: int) -> Races:
    """``times`` races on a new book at ``url``."""
    races, began = Races(times, processes), time.monotonic()
    fork = multiprocessing.get_context("fork")
    with Accounts.create(url) as book:
        for number in range(times):
            book.open_collection(f"race {number}", table())
        charges = [charge(book, 1 + number % max(processes - 1, 1)) for number in range(times)]
    barrier, answers = fork.Barrier(processes), fork.Queue()
    racers = [fork.Process(target=_racer, args=(url, charges, number, barrier, answers)) for number in range(processes)]
    for racer in racers:
        racer.start()
    outcomes: list[list[Any]] = []
    try:
        outcomes = [answers.get(timeout=LONGEST * max(1, times / 10)) for _ in racers]
    except Exception as error:  # a queue that stays empty: somebody is stuck
        races.failures.append(f"a process is stuck: {type(error).__name__}")
    for racer in racers:
        racer.join(timeout=5 if races.failures else LONGEST)
        if racer.is_alive():
            racer.kill()
            racer.join()
    races.seconds = time.monotonic() - began
    if outcomes:
        _judge(url, charges, outcomes, races)
    return races


def _racer(url: str, charges: list[Charge], number: int, barrier: Any, answers: Any) -> None:
    found: list[Any] = []
    with Accounts.open(url) as book:
        for turn, asked in enumerate(charges):
            barrier.wait(timeout=LONGEST)
            try:
                state = book.reserve(f"race {turn}", ("strict", "liberal"), asked)
                book.commit(state.id, state.total // 2)
                book.commit(state.id, state.total)
                book.settle(state.id, state.total)
                found.append("allowed")
            except AccountExceededError as refusal:
                found.append((refusal.owner, refusal.asked, refusal.left))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
    answers.put(found)


def _judge(url: str, charges: list[Charge], outcomes: list[list[Any]], races: Races) -> None:
    for turn in range(len(charges)):
        met = [each[turn] for each in outcomes]
        allowed = sum(each == "allowed" for each in met)
        refused = [each for each in met if isinstance(each, tuple)]
        races.seen["allowed"] += allowed
        races.seen["refused"] += len(refused)
        expected = 1 + turn % max(races.processes - 1, 1)
        if allowed != min(expected, races.processes) or allowed + len(refused) != races.processes:
            races.failures.append(f"race {turn}: {allowed} allowed of {expected}: {met}")
        if any(owner != "strict" or not left < asked for owner, asked, left in refused):
            races.failures.append(f"race {turn}: a refusal does not name owner, asked and left: {refused}")
    with Accounts.open(url) as book:
        for turn in range(len(charges)):
            collection = book.collection(f"race {turn}")
            if (collection.spent > collection.rooms).any() or collection.held.any():
                races.failures.append(f"race {turn}: over the budget, or something is still held")
        races.failures += verify_book(book).findings
