"""Spoil every kind of file that is read, for as long as you like: `python checks/fuzzing.py --seconds 600`.

Every reader of `tests/hostile/readers.py` gets good files with bytes changed, cut out, repeated or put in, and, for the
JSON formats, well-formed files whose digests and hashes fit and whose values do not. A reader may read such a file or
raise an error of inosgd; anything else, or an answer that takes longer than `LONGEST` seconds, is a finding.

With `--atheris READER`, and atheris installed, one reader is fuzzed under the guidance of the coverage of inosgd's own
code instead, from a good file on, until the seconds are up or something is found; with `--atheris all`, every reader
in turn, each in a process of its own.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType

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


def guided(name: str, seconds: float, seed: int) -> None:
    """One reader under atheris, until the time is up or something is found; the process ends here."""
    import atheris

    with tempfile.TemporaryDirectory() as folder:
        files, corpus = Path(folder) / "files", Path(folder) / "corpus"
        corpus.mkdir()
        (corpus / "good").write_bytes(READERS[name].good())
        (Path(folder) / "words").write_text("".join(f'"{_escaped(piece[:60])}"\n' for piece in PIECES))

        def one(content: bytes) -> None:
            with suppress(InosgdError):
                READERS[name].on(content, emptied(files))

        for function in own_functions():
            atheris.instrument_func(function)
        limits = [f"-max_total_time={seconds:.0f}", f"-timeout={LONGEST:.0f}", f"-seed={seed + 1}"]
        settings = [
            *limits,
            "-print_final_stats=1",
            "-rss_limit_mb=4096",
            f"-artifact_prefix={name}-".replace(" ", "-"),
        ]
        atheris.Setup([sys.argv[0], *settings, f"-dict={folder}/words", str(corpus)], one)
        atheris.Fuzz()


def own_functions() -> list[FunctionType]:
    """The functions and methods of inosgd that are loaded; libraries below it are too large to be followed."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "inosgd"]
    spaces = [vars(module) for module in modules]
    spaces += [vars(each) for space in spaces for each in space.values() if isinstance(each, type)]
    plain = [getattr(each, "__func__", each) for space in spaces for each in space.values()]
    found = {id(each): each for each in plain if isinstance(each, FunctionType) and _is_own(each)}
    return list(found.values())


def _is_own(function: FunctionType) -> bool:
    return (function.__module__ or "").split(".")[0] == "inosgd" and function.__code__.co_filename.endswith(".py")


def _escaped(piece: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in piece)


def all_guided(seconds: float, seed: int) -> str:
    """Every reader under atheris, one after the other: how many files each met, and how it ended."""
    lines = ["| reader | files | findings |", "| --- | ---: | --- |"]
    for name in READERS:
        command = [sys.executable, __file__, "--atheris", name, "--seconds", str(seconds / len(READERS))]
        command += ["--seed", str(seed)]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace")  # noqa: S603
        counted = re.search(r"number_of_executed_units: (\d+)", ended.stderr)
        files = f"{int(counted.group(1)):,}" if counted else "?"
        said = "none" if ended.returncode == 0 else f"code {ended.returncode}: {_reason(ended.stdout + ended.stderr)}"
        lines.append(f"| {name} | {files} | {said} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def _reason(said: str) -> str:
    """What atheris calls a finding, on one line."""
    marks = ("ERROR: libFuzzer", "Uncaught Python exception", "Error:", "Exception:")
    return "; ".join(line.strip() for line in said.splitlines() if any(mark in line for mark in marks))[:300]


def main() -> None:
    """Fuzz, print the table, and exit with 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", metavar="READER", choices=["all", *sorted(READERS)], help="needs atheris")
    options = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ResourceWarning)
    if options.atheris == "all":
        print(all_guided(options.seconds, options.seed))
        return
    if options.atheris:
        guided(options.atheris, options.seconds, options.seed)
    shown = table(fuzz(options.seconds, options.seed))
    print(shown)
    sys.exit("No findings." not in shown)


if __name__ == "__main__":
    main()
