"""Kills: a training that draws on a book is killed at each of its writes, and at random instants, and settled."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inosgd.accounting import epsilons_spent
from inosgd.accounts import book as book_module
from inosgd.accounts.book import Accounts
from inosgd.accounts.charge import cost
from inosgd.accounts.draws import Draw, releases_in, settle_from_run
from inosgd.accounts.verification import verify_book
from inosgd.ledger.records import RecordFile, read_chain
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.runs.folder import RunFolder

STEPS, BLOCK = 12, 5
LONGEST = 0.25
"""Seconds after which the last are killed, if they have not ended."""


def table() -> OwnerTable:
    return OwnerTable(("strict", "liberal"), np.array([1.0, 4.0]), np.full(2, 1e-5), np.array([50, 50]))


def small_plan() -> Plan:
    """So much noise that the budgets last for all trainings."""
    phases = (Phase(STEPS, Terms.for_owners(table(), np.full(2, 0.1), np.ones(2), 1000.0)),)
    return Plan(table(), phases, "rdp", epsilons_spent(phases, table().deltas, "rdp"))


@dataclass
class Kills:
    """What was seen."""

    kills: int = 0
    ended: int = 0
    where: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def train(url: str, run: RunFolder, plan: Plan, observed: Path) -> None:
    """A training without a model: every release is written down by an observer, after its record."""
    with Accounts.open(url) as book, run.lock() as locked:
        draw = Draw.reserve(book, "patients", plan, run=run.path, block=BLOCK)
        ledger = locked.open_ledger()
        ledger.permission = draw
        with observed.open("ab", buffering=0) as notes:
            for step in range(STEPS - 2):  # it ends early, so that something is given back
                ledger.record(step, plan.at(step))
                notes.write(b".")
        ledger.close()
        draw.finish()


def die_at(write: int, *, before: bool) -> None:
    """From here on, this process kills itself at its ``write``-th write: of the book, or of the ledger."""
    count = [0]

    def counted(function: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            count[0] += 1
            if before and count[0] == write:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if not before and count[0] == write:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    RecordFile._write = counted(RecordFile._write)  # type: ignore[method-assign]
    connect = book_module.connect

    def watched(*arguments: Any, **options: Any) -> Any:
        database = connect(*arguments, **options)
        rows = database.rows

        def only_writes(statement: str, values: Any = ()) -> Any:
            writes = statement.startswith(("INSERT", "UPDATE"))
            return counted(rows)(statement, values) if writes else rows(statement, values)

        database.rows = only_writes
        database.writing = _counted_context(database.writing, counted)
        return database

    book_module.connect = watched


def _counted_context(writing: Any, counted: Any) -> Any:
    """Entering and leaving a transaction are writes too: the lock, and the commit."""

    class Watched:
        def __enter__(self) -> Any:
            self.inner = writing()
            return counted(self.inner.__enter__)()

        def __exit__(self, *error: Any) -> Any:
            return counted(self.inner.__exit__)(*error)

    return Watched


def child(function: Any, *arguments: Any, patience: float | None = None) -> bool:
    """Run in a process of its own, killed after ``patience`` seconds; whether it was killed."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function(*arguments)
            status = 0
        except BaseException as error:  # a forked child must never return
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    deadline = time.monotonic() + (60.0 if patience is None else patience)
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status in (0, signal.SIGKILL), f"the training ended with {status}"
            return status == signal.SIGKILL
        time.sleep(0.0002)
    assert patience is not None, "the training is stuck"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def kill_at_every_write(url: str, folder: Path, *, every: int = 1) -> Kills:
    """A training for each of its writes, killed before and after it; ``every`` leaves some out."""
    kills, plan = Kills(), small_plan()
    with Accounts.create(url) as book:
        book.open_collection("patients", table())
    for before in (True, False):
        write = 1
        while _one(url, folder, plan, kills, f"{'before' if before else 'after'} write {write}", write, before):
            write += every
    return kills


def kill_at_random(url: str, folder: Path, times: int, seed: int = 0) -> Kills:
    """Trainings, each killed after a random time, until there were so many kills."""
    kills, plan, chance = Kills(), small_plan(), random.Random(seed)
    with Accounts.create(url) as book:
        book.open_collection("patients", table())
    number = 0
    while kills.kills < times:
        number += 1
        _one(url, folder, plan, kills, f"training {number}", patience=chance.random() * LONGEST)
    return kills


def _one(
    url: str,
    folder: Path,
    plan: Plan,
    kills: Kills,
    name: str,
    write: int | None = None,
    before: bool = True,
    patience: float | None = None,
) -> bool:
    run = RunFolder.create(folder / name.replace(" ", "-"), {}, plan)
    observed = folder / f"{run.path.name}.observed"

    def life() -> None:
        if write is not None:
            die_at(write, before=before)
        train(url, run, plan, observed)

    killed = child(life, patience=patience)
    kills.kills += killed
    kills.ended += not killed
    kills.failures += [f"{name}: {what}" for what in examine(url, run, observed, kills)]
    return killed


def examine(url: str, run: RunFolder, observed: Path, kills: Kills) -> list[str]:
    """Settle what is left of a training, and look at what it was charged."""
    wrong = []
    seen = len(observed.read_bytes()) if observed.exists() else 0
    recorded = releases_in(read_chain(run.ledger_path).bodies)
    with Accounts.open(url) as book:
        mine = [each for each in book.reservations() if each.run == str(run.path)]
        kills.where[mine[0].state if mine else "before the reservation"] += 1
        for state in mine:
            if state.state == "reserved":
                settle_from_run(book, state)
        ended = [each for each in book.reservations() if each.run == str(run.path)]
        charged = sum(each.committed for each in ended)
        lost = BLOCK if any(each.state == "reserved" for each in mine) else 0
        if not seen <= recorded <= charged <= recorded + lost:
            wrong.append(f"{seen} releases were seen, {recorded} are in the ledger and {charged} are charged")
        if any(each.state == "reserved" for each in ended):
            wrong.append("a reservation is left")
        collection = book.collection("patients")
        total = np.zeros(len(collection), dtype=np.int64)
        for each in book.reservations():
            prices = book.array(each.entry, "prices")
            total += cost(prices, each.releases, each.committed)
        if collection.held.any() or (collection.spent != total).any():
            wrong.append("what is held or spent is not what the reservations add up to")
    return wrong


def verified(url: str) -> list[str]:
    with Accounts.open(url) as book:
        return verify_book(book).findings
