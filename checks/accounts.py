"""Account books under load: `python checks/accounts.py races --times 1000`, `kills --kills 200`, `owners`.

    races     processes go for the last of a budget at the same moment: exactly as many are allowed as fit, every
              refusal names owner, asked and left, no process is stuck, and the book verifies with dp-accounting
    kills     a training that draws on a book is killed (SIGKILL) before and after each of its writes, to the book and
              to its own ledger, and then at random instants; after settling, what is charged is what its ledger has,
              an observer saw no release that is not charged, and nothing is held
    owners    a million owners: how long a reservation, a look at one owner and a longer history take

Each is done on SQLite and on PostgreSQL, whose server is started in a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.accounts.books import charge_of, same_for_all
from tests.accounts.killing import kill_at_every_write, kill_at_random, verified
from tests.accounts.racing import race
from tests.postgres import missing, server

from inosgd.accounting import Exposures
from inosgd.accounts.book import Accounts
from inosgd.accounts.views import described_owner
from inosgd.owners import OwnerTable

DATABASES = ("sqlite", "postgresql")


@contextmanager
def places(databases: list[str]) -> Iterator[dict[str, object]]:
    """For each database, a function that gives the URL of a new book."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))
        found: dict[str, object] = {"sqlite": lambda: f"sqlite:///{folder}/{next(numbers)}.db"}
        if "postgresql" not in databases:
            yield found
            return
        why = missing()
        if why is not None:
            raise SystemExit(why)
        with server() as running:
            yield found | {"postgresql": running.new_database}


def races(arguments: argparse.Namespace) -> int:
    """Races of 2 and of 8 processes."""
    print("| database | processes | races | allowed | refused | wrong | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    wrong = 0
    with places(arguments.databases) as urls:
        for database in arguments.databases:
            for processes in (2, 8):
                done = race(urls[database](), arguments.times, processes)
                wrong += len(done.failures)
                cells = (database, processes, done.times, done.seen["allowed"], done.seen["refused"])
                row = [*cells, len(done.failures), f"{done.seconds:.0f}"]
                print("|", " | ".join(map(str, row)), "|", *done.failures[:5], flush=True)
    return wrong


def kills(arguments: argparse.Namespace) -> int:
    """Kills at every write, and at random instants."""
    print("| database | kills | killed | before the reservation | after it | after the end | wrong |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    wrong = 0
    with places(arguments.databases) as urls, tempfile.TemporaryDirectory() as folder:
        for database in arguments.databases:
            for name in ("before and after every write", "at random instants"):
                url, place = urls[database](), Path(folder) / f"{database}-{name.split()[0]}"
                place.mkdir()
                if name.startswith("before"):
                    done = kill_at_every_write(url, place)
                else:
                    done = kill_at_random(url, place, arguments.kills)
                failures = done.failures + verified(url)
                wrong += len(failures)
                early, reserved = done.where["before the reservation"], done.where["reserved"]
                late = sum(done.where.values()) - early - reserved
                row = [database, name, done.kills, early, reserved, late, len(failures)]
                print("|", " | ".join(map(str, row)), "|", *failures[:5], flush=True)
    return wrong


def owners(arguments: argparse.Namespace) -> int:
    """A million owners, in a thousand classes and all different."""
    print("| database | owners | classes | opened | left for a plan | reserved | committed | one owner | one more |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with places(arguments.databases) as urls:
        for database in arguments.databases:
            for classes in (1000, arguments.owners):
                print(
                    "|", " | ".join([database, *_timed(urls[database](), arguments.owners, classes)]), "|", flush=True
                )
    return 0


def _timed(url: str, count: int, classes: int) -> list[str]:
    names = tuple(f"owner {number}" for number in range(count))
    budgets = np.linspace(0.5, 8.0, classes)[np.arange(count) % classes]
    table = OwnerTable(names, budgets, np.full(count, 1e-7), np.ones(count, dtype=np.int64))
    rates = 1e-3 * budgets
    charge = charge_of(Exposures(rates, np.full(count, 4.0), 10))
    watch = _Watch()
    with Accounts.create(url) as book:
        watch(lambda: book.open_collection("people", table))
        watch(lambda: book.left("people", table, share=0.5))
        state = watch(lambda: book.reserve("people", names, charge))
        watch(lambda: book.commit(state.id, 5))
        watch(lambda: described_owner(book, "people", names[count // 2]), times=5)
        few = same_for_all(1e-4, 4.0, 1, count)
        more = 20 if classes < count else 2
        watch(lambda: [book.reserve("people", names, few) for _ in range(more)])
    shown = [f"{wall:.2g} ({cpu:.2g})" for wall, cpu in watch.seconds]
    return [f"{count:,}", f"{classes:,}", *shown[:-1], f"{watch.seconds[-1][0] / more:.2g}"]


class _Watch:
    """How long calls took, in seconds, and how much of that on a processor by this process; of several the median."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []

    def __call__(self, function, *, times: int = 1):
        """Call and measure."""
        taken = []
        for _ in range(times):
            began = time.perf_counter(), time.process_time()
            result = function()
            taken.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        wall, cpu = np.median(taken, axis=0).tolist()
        self.seconds.append((wall, cpu))
        return result


def main() -> None:
    """Do what was asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["races", "kills", "owners"])
    parser.add_argument("--times", type=int, default=1000, help="races of each kind")
    parser.add_argument("--kills", type=int, default=200, help="kills at random instants, on each database")
    parser.add_argument("--owners", type=int, default=1_000_000)
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=list(DATABASES))
    arguments = parser.parse_args()
    wrong = {"races": races, "kills": kills, "owners": owners}[arguments.what](arguments)
    if wrong:
        raise SystemExit(f"{wrong} findings")


if __name__ == "__main__":
    main()
