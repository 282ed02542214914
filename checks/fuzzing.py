"""Spoil every kind of file that is read, for as long as you like: `python checks/fuzzing.py --seconds 600`.

Every reader of `tests/hostile/readers.py` gets good files with bytes changed, cut out, repeated or put in, and, for the
JSON formats, well-formed files whose digests and hashes fit and whose values do not. A reader may read such a file or
raise an error of inosgd; anything else, or an answer that takes longer than `LONGEST` seconds, is a finding.

With `--atheris READER`, and atheris installed, one reader is fuzzed under the guidance of its coverage instead.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.hostile.readers import FORGERIES, READERS, STRANGE_VALUES, emptied, places, replaced

from inosgd.errors import InosgdError

LONGEST = 5.0
PIECES = (
    b"\xff" * 8,
    b"\0" * 8,
    b"\x7f" + b"\xff" * 7,
    b"9" * 400,
    b"1e999",
    b"[" * 3000,
    b'{"a":' * 1000,
    b"..",
    b'"',
)


def spoiled(content: bytes, rng: random.Random) -> bytes:
    """The content with one to five changes."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(changed) + 1)
        length = rng.choice([0, 0, 1, 4, 50, len(changed)])
        copied = rng.randrange(len(content) + 1)
        piece = rng.choice(
            [rng.randbytes(rng.choice([1, 4, 40])), rng.choice(PIECES), content[copied : copied + 60], b""]
        )
        changed[place : place + length] = piece
    return bytes(changed)


def forged(name: str, rng: random.Random) -> tuple[str, bytes]:
    """A reader's name, and a well-formed file with one strange value for it."""
    reader, tree, build = FORGERIES[name]
    good = tree()
    return reader, build(replaced(good, rng.choice(places(good)), rng.choice(STRANGE_VALUES)))


def attempt(reader: str, content: bytes, folder: Path) -> str:
    """What happened: "read", "refused", or what is wrong."""
    started = time.process_time()
    try:
        READERS[reader].on(content, emptied(folder))
        outcome = "read"
    except InosgdError:
        outcome = "refused"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = f"{type(error).__name__} in {where.name}: {str(error)[:80]}"
    took = time.process_time() - started
    return outcome if took < LONGEST else f"{outcome}, after {took:.0f} s"


def fuzz(seconds: float, seed: int) -> dict[str, Counter[str]]:
    """All readers in turn until the time is up, and what happened to each."""
    rng, found = random.Random(seed), {}
    sources: dict[str, Callable[[], tuple[str, bytes]]] = {
        name: lambda name=name: (name, spoiled(READERS[name].good(), rng)) for name in READERS
    }
    sources |= {f"forged {name}": lambda name=name: forged(name, rng) for name in FORGERIES}
    share = seconds / len(sources)
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            READERS[source()[0]].on(READERS[source()[0]].good(), emptied(Path(folder) / "files"))
            found[name], until = Counter(), time.monotonic() + share
            while time.monotonic() < until:
                found[name][attempt(*source(), Path(folder) / "files")] += 1
    return found


def table(found: dict[str, Counter[str]]) -> str:
    """One row per reader, then every finding."""
    lines = ["| reader | files | read | refused | findings |", "| --- | ---: | ---: | ---: | ---: |"]
    findings = []
    for name, outcomes in found.items():
        wrong = {each: count for each, count in outcomes.items() if each not in ("read", "refused")}
        findings += [f"- {name}: {each} ({count} times)" for each, count in wrong.items()]
        counts = sum(outcomes.values()), outcomes["read"], outcomes["refused"], sum(wrong.values())
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join([*lines, "", *(findings or ["No findings."])])


def guided(name: str, arguments: list[str]) -> None:
    """One reader under atheris, until it is interrupted or something is found."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:

        def one(content: bytes) -> None:
            with suppress(InosgdError):
                READERS[name].on(content, emptied(Path(folder) / "files"))

        atheris.instrument_all()
        atheris.Setup([sys.argv[0], *arguments], one)
        atheris.Fuzz()


def main() -> None:
    """Fuzz, print the table, and exit with 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", metavar="READER", choices=sorted(READERS), help="needs the package atheris")
    options, rest = parser.parse_known_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ResourceWarning)
    if options.atheris:
        guided(options.atheris, rest)
        return
    shown = table(fuzz(options.seconds, options.seed))
    print(shown)
    sys.exit("No findings." not in shown)


if __name__ == "__main__":
    main()
