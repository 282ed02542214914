"""Compare the default engine with a float64 loop over examples on the models that people use.

`python checks/models.py --out checks/MODELS.md` builds every configuration of `tests/architectures` in small and with
random weights: torch.nn, torchvision, timm, segmentation_models_pytorch, transformers and peft, which the extra
`models` installs. Nothing is downloaded. `tests/architectures/compared.py` says what *exact* means. Each configuration
has a process of its own and a time limit; `--only TEXT` takes those whose name has the text in it. In which sizes
batches pass is not probed unless `--probe` asks for it: that is about bits, and takes most of the time here. Outcomes
are kept in the file `--results`, and a second run takes only what is missing there.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines announce AMX and lack it

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.architectures.catalogue import all_configurations
from tests.architectures.compared import Outcome, outcome
from tests.architectures.configuration import Configuration
from tests.gradients.conftest import leave_sizes_unprobed

from inosgd.bench.packages import imported

PACKAGES = ("torch", "torchvision", "timm", "segmentation_models_pytorch", "transformers", "peft")


def compare_in_process(configuration: Configuration, seconds: float) -> Outcome:
    """The outcome in a process of its own: a crash of the interpreter and an endless run are outcomes too."""
    context = multiprocessing.get_context("fork")  # the packages are imported already, which takes longest
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(configuration, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else Outcome("crash", reason=f"no answer after {seconds:.0f} s")
    except EOFError:
        process.join()
        return Outcome("crash", reason=f"the process ended with code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _send_outcome(configuration: Configuration, to: Connection) -> None:
    warnings.simplefilter("ignore")
    try:
        to.send(outcome(configuration))
    except Exception as error:  # of building the model: the configuration is at fault
        to.send(Outcome("crash", reason=f"not built: {type(error).__name__}: {error}"))


def column_of(found: Outcome) -> str:
    """Under which heading an outcome is counted."""
    if found.kind == "exact" and found.remedies == ("replace_batchnorm",):
        return "exact after replace_batchnorm"
    if found.kind == "exact" and found.remedies:
        return f"exact {'by' if 'ReferenceEngine' in found.remedies else 'after'} {', '.join(found.remedies)}"
    return found.kind


COLUMNS = (
    "exact",
    "exact after replace_batchnorm",
    "exact by ReferenceEngine",
    "exact after eval",
    "exact after use_reentrant=False",
    "exact after batched_mm",
    "refused",
    "crash",
    "wrong",
)


def markdown(results: dict[str, tuple[str, Outcome]], remark: str) -> str:
    """Counts by package, then everything that is not simply exact with its reason, then all configurations."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    lines = ["# Models that people use", "", *remark.splitlines(), "", f"Versions: {versions}.", ""]
    lines += ["| package | " + " | ".join(COLUMNS) + " | all |", "|---" + "|---:" * (len(COLUMNS) + 1) + "|"]
    for package in [*dict.fromkeys(package for package, _ in results.values()), None]:
        counts = Counter(column_of(found) for owner, found in results.values() if package in (owner, None))
        cells = [str(counts[column]) for column in COLUMNS]
        lines.append(f"| {package or '**all**'} | {' | '.join(cells)} | {sum(counts.values())} |")
    lines += [
        "",
        "## Not exact by the default engine as they are",
        "",
        "| configuration | outcome | reason |",
        "|---|---|---|",
    ]
    rest = {name: found for name, (_, found) in results.items() if column_of(found) not in COLUMNS[:2]}
    lines += [f"| {name} | {column_of(found)} | {_cell(found.reason)} |" for name, found in rest.items()]
    lines += [
        "",
        "## All",
        "",
        "| configuration | outcome | norms | sums | below | above |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, (_, found) in results.items():
        errors = [_number(each) for each in (found.norms, found.sums, found.below, found.above)]
        lines.append(f"| {name} | {column_of(found)} | {' | '.join(errors)} |")
    return "\n".join(lines) + "\n"


def _number(error: float) -> str:
    return "-" if error != error else f"{max(error, 0.0):.0e}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:600]


REMARK = """\
Written by `python checks/models.py --out checks/MODELS.md`. Every model is built in small with random weights and
passes 5 examples in training mode; the engine's norms and weighted sum are compared to a loop over the examples in
float64. What counts as exact, and how models with dropout are compared, is written in
[compared.py](../tests/architectures/compared.py). *Exact* is the default engine on the model as it is. Whatever is
refused was tried again by the remedy that the refusal names, and is counted under it if the result is exact then.
Errors are relative: of the worst norm and of the sum in float64, and how far norms in the types that the model has,
mostly float32, are below the loop's and above them. There norms are bounds, and are above by what roundings may have
taken away."""


def known(results: Path | None) -> dict[str, Outcome]:
    """What earlier runs found."""
    if results is None or not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {line.pop("name"): Outcome(**{**line, "remedies": tuple(line["remedies"])}) for line in lines}


def main() -> None:
    """Run what was asked for, show how far it has come, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="configurations whose name has this text in it")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of each configuration")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    parser.add_argument("--results", type=Path, help="keep outcomes in this file, as lines of JSON")
    parser.add_argument("--probe", action="store_true", help="probe sizes of batches, as a training does")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.probe:
        leave_sizes_unprobed(pytest.MonkeyPatch())  # for good: nothing else runs in this process
    for package in PACKAGES:
        imported(package)
    chosen = {name: each for name, each in all_configurations().items() if arguments.only in name}
    results = {}
    for number, (name, configuration) in enumerate(chosen.items(), 1):
        started = time.monotonic()
        found = known(arguments.results).get(name) or compare_in_process(configuration, arguments.seconds)
        results[name] = (configuration.package, found)
        took = time.monotonic() - started
        print(f"{number}/{len(chosen)} {name}: {column_of(found)} ({took:.1f} s) {found.reason[:300]}", flush=True)
        if arguments.results is not None and name not in known(arguments.results):
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, **asdict(found)}) + "\n")
    if arguments.out is not None:
        arguments.out.write_text(markdown(results, REMARK), encoding="utf-8")
    print(dict(Counter(column_of(found) for _, found in results.values())))


if __name__ == "__main__":
    main()
