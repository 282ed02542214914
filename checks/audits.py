"""All audits of the digits study, and every known defect: `python checks/audits.py --out FOLDER --write`.

LiRA
    512 shadow models by IDP-SGD and by INO-SGD. One of the two is killed half-way (SIGKILL to all of its processes) and
    run again: what was finished must not be trained again.
canaries
    256 repeated trainings, black-box and white-box, one training with 5,000 canaries per owner, and the order view, for
    both methods. Correct code must not be rejected.
controls
    Each defect must be caught: the same audit of a training that does something else than is claimed.

Every audit is a call of the `inosgd` command as its users make it, in a folder of its own: whatever is finished is
reused when the check is started again. Times are processor seconds of all processes of an audit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inosgd.shown import rounded_down, rounded_up

METHODS = ("idp-sgd", "ino-sgd")
CONTROLS = {
    "half-noise": ("idp-sgd", 160),
    "unstable-order": ("ino-sgd", 60),
    "no-noise": ("idp-sgd", 24),
    "unclipped-owner": ("idp-sgd", 24),
    "rejection": ("idp-sgd", 24),
    "anothers-terms": ("idp-sgd", 24),
}
"""Each defect with the method that has it and the number of repeated trainings that find it."""

CONTROL_STEPS = 50
"""Budgets are met by any number of steps; few are enough to see a defect."""


@dataclass(frozen=True)
class Plan:
    """What is run: numbers of models, trainings and canaries, processes, and where."""

    folder: Path
    models: int
    runs: int
    canaries: int
    jobs: int
    share: float


def audited(plan: Plan, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The report of one audit with the processor seconds that it took; kept, and not run twice."""
    kept = plan.folder / f"{name}.json"
    if kept.exists():
        report: dict[str, Any] = json.loads(kept.read_text())
        return report
    started, before = time.monotonic(), _children()
    ended = subprocess.run(_command(plan, name, arguments), stdout=subprocess.PIPE, text=True)  # noqa: S603
    if ended.returncode not in (0, 1):
        raise SystemExit(f"{name}: ended with code {ended.returncode}")
    report = json.loads(ended.stdout)
    report["processor_seconds"], report["seconds"] = _children() - before, time.monotonic() - started
    kept.write_text(json.dumps(report))
    print(f"{name}: {report['processor_seconds']:.0f} s of processor time", file=sys.stderr, flush=True)
    return report


def _command(plan: Plan, name: str, arguments: Sequence[str]) -> list[str]:
    place = ["--out", str(plan.folder / name), "--jobs", str(plan.jobs), "--json"]
    return [sys.executable, "-m", "inosgd", "audit", *arguments, *place]


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kill_half_way(plan: Plan, name: str, arguments: Sequence[str]) -> dict[str, int]:
    """Start an audit, kill it when half of its shadow models are there, and say when each of them was written."""
    folder, kept = plan.folder / name, plan.folder / f"{name}.killed"
    if kept.exists():
        known: dict[str, int] = json.loads(kept.read_text())
        return known
    with subprocess.Popen(  # noqa: S603
        _command(plan, name, arguments), stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while process.poll() is None and len(list(folder.glob("shadow-*.npz"))) < plan.models // 2:
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGKILL)
    finished = {file.name: file.stat().st_mtime_ns for file in folder.glob("shadow-*.npz")}
    kept.write_text(json.dumps(finished))
    return finished


def run(plan: Plan) -> dict[str, Any]:
    """All audits."""
    found: dict[str, Any] = {"lira": {}, "canary": {}, "controls": {}}
    for method in METHODS:
        arguments = ["lira", "digits", "--method", method, "--models", str(plan.models)]
        if method == "ino-sgd":
            found["killed"] = kill_half_way(plan, f"lira-{method}", arguments)
        found["lira"][method] = audited(plan, f"lira-{method}", arguments)
    times = {file.name: file.stat().st_mtime_ns for file in (plan.folder / "lira-ino-sgd").glob("shadow-*.npz")}
    found["again"] = sum(times[name] != written for name, written in found["killed"].items())
    numbers = ["--canaries", str(plan.canaries), "--runs"]
    for method in METHODS:
        arguments = ["canary", "digits", "--method", method, *numbers, str(plan.runs)]
        found["canary"][method] = audited(plan, f"canary-{method}", arguments)
    for control, (method, runs) in CONTROLS.items():
        counted = str(max(round(runs * plan.share), 12))
        arguments = ["canary", "digits", "--method", method, "--control", control, *numbers, counted]
        arguments += ["--steps", str(CONTROL_STEPS)]
        found["controls"][control] = audited(plan, f"control-{control}", arguments)
    arguments = ["canary", "digits", "--method", "idp-sgd", *numbers, str(max(round(160 * plan.share), 12))]
    found["matched"] = audited(plan, "matched-idp-sgd", [*arguments, "--steps", str(CONTROL_STEPS)])
    return found


def page(found: dict[str, Any]) -> str:
    """The tables as Markdown."""
    first = next(iter(found["lira"].values()))
    steps, models = first["steps"], first["models"]
    canaries = next(iter(found["canary"].values()))
    lines = [
        "# Audits of the digits study",
        "",
        f"`python checks/audits.py`: {steps} steps, digits 0-4 with a budget of 1 and digits 5-9 with one of 8, delta "
        "1e-5, seed 0, on a machine busy with other work. What each audit attacks, and what its bounds assume, is in "
        "[docs/audits.md](../docs/audits.md). An upper bound is what the accountant says; a lower bound above it would "
        "prove a mistake.",
        "",
        "## LiRA",
        "",
        f"{models} shadow models for each method. AUC with approximate 95% intervals over trainings; *most*: no attack "
        "can do better if the accounted profile holds; rates in percent; *empirical*: Clopper and Pearson's bound as "
        "if pairs of a model and an example were independent; *valid*: a bound without that assumption, all owners and "
        "forms together at 95%.",
        "",
        *lira_table(found["lira"]),
        "",
        *lira_times(found),
        "",
        "## Canaries",
        "",
        f"{canaries['runs']} repeated trainings and one with {canaries['canaries']:,} canaries per owner, for each "
        "method; all lower bounds of a method hold together at 95%. *if Gaussian*: if only the amount of noise is in "
        "doubt. Both methods see the same samples and noise, and canaries come first in the order and keep their whole "
        "weight: their rows for the first four views are alike.",
        "",
        *canary_table(found["canary"]),
        "",
        "## Known defects",
        "",
        f"Trainings of {CONTROL_STEPS} steps that claim to keep the same budgets and do not; each must be refuted at "
        "95%. The last row is correct code under the audit that the first one had.",
        "",
        *control_table({**found["controls"], "none": found["matched"]}),
    ]
    return "\n".join(lines) + "\n"


def lira_table(reports: dict[str, Any]) -> list[str]:
    """One row per method, form and owner."""
    lines = [
        "| method | form | owner | AUC | most | TPR at 1% | most | TPR at 0.1% | most | empirical ε ≥ | valid ε ≥ | "
        "accounted ε | budget | refuted |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for method, report in reports.items():
        for form, owners in report["owners"].items():
            for row in owners:
                cells = [
                    method,
                    form,
                    row["owner"],
                    f"{row['auc']:.3f} ± {_reach(row['auc_interval']):.3f}",
                    f"{row['highest_auc']:.3f}",
                    f"{100 * row['tpr_at_1_percent']:.2f} ± {100 * _reach(row['tpr_at_1_percent_interval']):.2f}",
                    f"{100 * row['highest_tpr_at_1_percent']:.2f}",
                    f"{100 * row['tpr_at_1_permille']:.2f} ± {100 * _reach(row['tpr_at_1_permille_interval']):.2f}",
                    f"{100 * row['highest_tpr_at_1_permille']:.2f}",
                    rounded_down(row["empirical_epsilon"], 3),
                    rounded_down(row["lower_bound"], 3),
                    rounded_up(row["accounted"], within=row["budget"]),
                    f"{row['budget']:g}",
                    "YES" if row["rejected"] else "no",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _reach(interval: Sequence[float]) -> float:
    return (interval[1] - interval[0]) / 2


def lira_times(found: dict[str, Any]) -> list[str]:
    """What the audits took, and what came of the one that was killed."""
    whole, rest = found["lira"]["idp-sgd"], found["lira"]["ino-sgd"]
    return [
        f"IDP-SGD's took {whole['processor_seconds']:.0f} processor seconds from beginning to end. INO-SGD's was "
        f"killed with {len(found['killed'])} of {rest['models']} models finished and started again; the rest took "
        f"{rest['processor_seconds']:.0f} processor seconds, and {found['again']} finished models were trained again."
    ]


def canary_table(reports: dict[str, Any]) -> list[str]:
    """One row per method, owner and view."""
    lines = [
        "| method | owner | view | ε ≥ | ε ≥ if Gaussian | accounted ε | budget | trials | refuted |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for method, report in reports.items():
        for row in report["findings"]:
            cells = [
                method,
                row["owner"],
                row["view"],
                rounded_down(row["lower_bound"], 3),
                rounded_down(row["lower_bound_of_noise"], 3),
                rounded_up(row["accounted"], within=row["budget"]),
                f"{row['budget']:g}",
                f"{row['trials']:,}",
                "YES" if row["rejected"] else "no",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def control_table(reports: dict[str, Any]) -> list[str]:
    """One row per defect: who refuted which owner's claim."""
    lines = ["| defect | method | repeated trainings | verdict | by |", "| --- | --- | ---: | --- | --- |"]
    for control, report in reports.items():
        guilty: dict[str, list[str]] = {}
        for row in report["findings"]:
            if row["rejected"]:
                guilty.setdefault(row["owner"], []).append(row["view"])
        told = "; ".join(f"{owner}: {', '.join(views)}" for owner, views in guilty.items())
        verdict = "refuted" if guilty else "not refuted"
        lines.append(f"| {control} | {report['method']} | {report['runs']} | {verdict} | {told} |")
    return lines


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    refuted = [
        f"{kind} refutes correct {method}"
        for kind in ("lira", "canary")
        for method in METHODS
        if found[kind][method]["rejected"]
    ]
    if found["matched"]["rejected"]:
        refuted.append("the audit of the controls refutes correct code")
    if found["again"]:
        refuted.append(f"{found['again']} finished models were trained again")
    return refuted + [f"{name} is not caught" for name, report in found["controls"].items() if not report["rejected"]]


def main() -> None:
    """Run everything, print the page, and exit with 1 if correct code is refuted or a defect is not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder for the audits; continued if it exists")
    parser.add_argument("--models", type=int, default=512)
    parser.add_argument("--runs", type=int, default=256)
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--share", type=float, default=1.0, help="of the controls' usual trainings")
    parser.add_argument("--write", action="store_true", help="put the page into checks/AUDITS.md")
    options = parser.parse_args()
    options.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    plan = Plan(options.out, options.models, options.runs, options.canaries, options.jobs, options.share)
    found = run(plan)
    shown = page(found)
    print(shown)
    if options.write:
        (Path(__file__).parent / "AUDITS.md").write_text(shown)
    sys.exit("; ".join(wrong(found)) or 0)


if __name__ == "__main__":
    main()
