"""``inosgd audit``: attack one's own training, and say what that proves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from inosgd import _validate
from inosgd.audit import NOT_PRIVATE, canary, findings, membership
from inosgd.audit.audited import Audited
from inosgd.audit.claims import subjects_of
from inosgd.audit.controls import CONTROLS
from inosgd.audit.drawing import roc_picture
from inosgd.audit.game import Game, Played
from inosgd.audit.lira import FORMS
from inosgd.audit.shadow import membership as members_of
from inosgd.audit.shadow import stackable, tasks_for, train_shadows
from inosgd.audit.store import AuditFolder, confidences_of, shadow_name
from inosgd.cli.console import plain_table, progress_bar, results, rounded_up
from inosgd.cli.options import OutputOptions, with_groups
from inosgd.cli.studies import MethodOptions, Seed, StudyArgument, find_study
from inosgd.cli.workers import WorkerOptions
from inosgd.errors import InvalidArgumentError
from inosgd.method import IDP_SGD, INO_SGD, METHODS
from inosgd.parallel.runner import Failure, failures_error, run_all
from inosgd.parallel.workers import Workers
from inosgd.report.measuring import keep
from inosgd.report.reading import read_run
from inosgd.study.account import note_look
from inosgd.study.study import Study

app = typer.Typer(
    help="Attack a training: lower bounds on what every owner loses, beside what is accounted for.",
    no_args_is_help=True,
)

ControlName = Annotated[
    str | None, typer.Option(help=f"Audit a training with a known defect instead: {', '.join(CONTROLS)}.")
]
Confidence = Annotated[float, typer.Option(help="The confidence with which all bounds hold together.")]
Into = Annotated[
    Path | None, typer.Option(help="A finished run of the same study and method: its report then shows the ROC.")
]


@app.command("lira")
@with_groups
def lira_command(
    study: StudyArgument,
    models: Annotated[int, typer.Option(help="How many shadow models.")] = 512,
    form: Annotated[str, typer.Option(help=f"The form of the attack that is shown: {', '.join(FORMS)}.")] = "online",
    control: ControlName = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    into: Into = None,
    *,
    options: MethodOptions,
    workers: WorkerOptions,
    output: OutputOptions,
) -> None:
    """Membership inference: shadow models on random halves, and how well members can be told from others.

    Ends with code 1 if a claim is refuted, unless that was asked for with --control.
    """
    _validate.whole(membership.FEWEST_MODELS, models=models)
    _validate.open_unit(confidence=confidence)
    _validate.one_of(FORMS, form=form)
    audited = Audited.of(_study(study, options), control, seed, halves=True)
    note_look(audited.study, "audit lira")
    if into is not None:
        _check_run(into, audited)
    folder = audited.folder("lira", output.out)
    with workers.connected(continues=True) as connected:
        _train_shadows(audited, range(models), folder, connected)
    report = _lira_report(audited, models, folder, confidence)
    if into is not None:
        keep(into, "roc", {audited.study.config.method.name: _curves(report["owners"][form])})
    _end(report, folder, output, lambda: _print_lira(report, form))


@app.command("canary")
@with_groups
def canary_command(
    study: StudyArgument,
    runs: Annotated[int, typer.Option(help="How many repeated trainings of each kind.")] = 256,
    canaries: Annotated[int, typer.Option(help="How many canaries per owner in the single training.")] = 5000,
    control: ControlName = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    *,
    options: MethodOptions,
    workers: WorkerOptions,
    output: OutputOptions,
) -> None:
    """Worst-case gradients: the most that a party that sees every step, or the final model, can tell.

    Ends with code 1 if a claim is refuted, unless that was asked for with --control.
    """
    _validate.open_unit(confidence=confidence)
    audited = Audited.of(_study(study, options), control, seed, halves=False)
    note_look(audited.study, "audit canary")
    game = Game(audited.study, audited.data, audited.claimed, audited.practice, seed)
    tasks = canary.tasks_of(game, runs, canaries)
    folder = audited.folder("canary", output.out, canaries=canaries)
    with workers.connected(continues=True) as connected:
        played = _play(tasks, folder, connected)
    report = _canary_report(audited, game, played, runs, canaries, confidence, folder)
    _end(report, folder, output, lambda: _print_canary(report))


def _study(text: str, options: MethodOptions) -> Study:
    """The study by the method to be audited: by default INO-SGD for a study that compares, else the study's own."""
    study = find_study(text, allow_factory=options.allow_factory)
    own, variant = study.config.plan.variant, options.variant
    name = options.method or (study.config.method.name if study.file is not None else INO_SGD.name)
    if name == study.config.method.name:
        return study.changed(({} if variant is None else {"variant": variant}) | options.changes)
    usual = own if METHODS.get(name) in (IDP_SGD, INO_SGD) and own != "uniform" else None
    planned = variant or usual
    return study.changed({"method": name} | ({} if planned is None else {"variant": planned}) | options.changes)


# LiRA --------------------------------------------------------------------------------------------------------------


def _train_shadows(audited: Audited, numbers: Sequence[int], folder: AuditFolder, workers: Workers) -> None:
    missing = [number for number in numbers if not folder.has(shadow_name(number))]
    stacked = stackable(audited.study, audited.data, audited.seed)
    tasks = tasks_for(audited.study, audited.practice, audited.seed, missing, stacked=stacked)
    with progress_bar() as progress:
        bar = progress.add_task(f"{audited.study.name}: shadow models", total=len(missing))
        failures = []
        for index, outcome in run_all(train_shadows, tasks, names=[task.name for task in tasks], workers=workers):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            for number, confidences in zip(tasks[index].numbers, outcome, strict=True):
                folder.keep(shadow_name(number), confidences=confidences.astype(np.float32))
            progress.update(bar, advance=len(tasks[index].numbers))
    if failures:
        raise failures_error(failures, len(tasks), "sets of shadow models")


def _lira_report(audited: Audited, models: int, folder: AuditFolder, confidence: float) -> dict[str, Any]:
    confidences = confidences_of(folder, range(models))
    members = np.stack([members_of(audited.seed, number, confidences.shape[1]) for number in range(models)])
    subjects = subjects_of(audited.claimed, audited.data)
    found = {form: membership.attack(confidences, members, subjects, form, confidence) for form in FORMS}
    title = f"LiRA on {audited.study.name}, {audited.study.config.method.name}, {models} models"
    for form, attacked in found.items():
        folder.write(f"roc-{form}.svg", roc_picture(attacked, f"{title}, {form}"))
    return {
        **audited.described(),
        "models": models,
        "confidence": confidence,
        "owners": {form: [each.to_json() for each in attacked] for form, attacked in found.items()},
        "verdict": {form: membership.verdict(attacked, confidence) for form, attacked in found.items()},
        "rejected": any(each.rejected for attacked in found.values() for each in attacked),
        "folder": str(folder.path),
    }


def _print_lira(report: Mapping[str, Any], form: str) -> None:
    shown, owners = results(), report["owners"][form]
    shown.print(f"[bold]LiRA ({form}) on {report['study']}: {report['description']}[/]")
    shown.print(_head(report) + f", {report['models']} shadow models, each {report['unit']} in half of them\n")
    table = plain_table("owner", right=("spent", "of", "AUC", "most", "at 1%", "most", "at .1%", "most", "ε ≥"))
    for row in owners:
        low, high = row["auc_interval"]
        table.add_row(
            row["owner"],
            rounded_up(row["accounted"], 3),
            _number(row["budget"]),
            f"{row['auc']:.3f} ± {(high - low) / 2:.3f}",
            f"{row['highest_auc']:.3f}",
            *(f"{100 * row[key]:.3g}" for key in _RATES),
            f"{row['lower_bound']:.2f}{' !' if row['rejected'] else ''}",
        )
    shown.print(table)
    advantages = "; ".join(
        f"{row['owner']} {row['advantage_at_least']:.3f} where {row['highest_advantage']:.3f} is possible"
        for row in owners
    )
    at_budget = ", ".join(f"{row['highest_auc_at_budget']:.3f}" for row in owners)
    usual = ", ".join(f"{row['empirical_epsilon']:.2f}" for row in owners)
    confidence = f"{report['confidence']:.0%}"
    shown.print(
        f"\n±: approximate {confidence} interval of each. at 1%, at .1%: percent of members found at that rate of "
        f"false alarms. most: no attack can do better if the accounted profile holds (knowing only the budgets, AUC "
        f"{at_budget}). ε ≥: lower bounds at each owner's δ, all together with {confidence} confidence "
        f"(Bonferroni over {membership.bounds_of(len(owners))}), and so are those on the advantage, true less false "
        f"positive rate: {advantages}. If pairs of a model and a {report['unit']} were independent, as is often "
        f"assumed, Clopper and Pearson's bounds on both rates would give ε ≥ {usual}."
    )
    _print_end(report, report["verdict"][form])


_RATES = ("tpr_at_1_percent", "highest_tpr_at_1_percent", "tpr_at_1_permille", "highest_tpr_at_1_permille")


# Canaries ----------------------------------------------------------------------------------------------------------


def _play(tasks: Sequence[canary.Task], folder: AuditFolder, workers: Workers) -> dict[str, Played]:
    missing = [task for task in tasks if not folder.has(_task_name(task))]
    with progress_bar() as progress:
        bar = progress.add_task("audited trainings", total=sum(len(task.numbers) for task in missing))
        for task, played in canary.play_all(missing, workers):
            folder.keep(_task_name(task), included=played.included, white=played.white, black=played.black)
            progress.update(bar, advance=len(task.numbers), description=f"audited trainings: {task.kind}")
    kinds = dict.fromkeys(task.kind for task in tasks)
    return {
        kind: Played.together([Played(**folder.kept(_task_name(task))) for task in tasks if task.kind == kind])
        for kind in kinds
    }


def _task_name(task: canary.Task) -> str:
    return f"{task.kind}-{task.numbers[0]:05d}-{len(task.numbers)}"


def _canary_report(
    audited: Audited,
    game: Game,
    played: dict[str, Played],
    runs: int,
    canaries: int,
    confidence: float,
    folder: AuditFolder,
) -> dict[str, Any]:
    found = findings.findings(game, played, confidence)
    return {
        **audited.described(),
        "runs": runs,
        "canaries": canaries,
        "confidence": confidence,
        "findings": [each.to_json() for each in found],
        "verdict": findings.verdict(found, confidence),
        "rejected": any(each.rejected for each in found),
        "folder": str(folder.path),
    }


def _print_canary(report: Mapping[str, Any]) -> None:
    shown, found = results(), report["findings"]
    views, owners = {row["view"] for row in found}, {row["owner"] for row in found}
    bounds = findings.bounds_of(len(owners), "order" in views)
    shown.print(f"[bold]Canaries in {report['study']}: {report['description']}[/]")
    shown.print(
        _head(report) + f", {report['runs']} repeated trainings, {report['canaries']} canaries per owner in one\n"
    )
    shown.print(_canary_table(found))
    shown.print(
        f"\nLower bounds on ε at each owner's δ; all of them hold together with {report['confidence']:.0%} confidence "
        f"(Bonferroni over {bounds}). if Gaussian: if only the amount of noise is in doubt. spent: the accounted upper "
        "bound, which is tested."
    )
    _print_end(report, report["verdict"])


def _canary_table(found: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table("owner", "view", right=("ε ≥", "if Gaussian", "spent", "of", "trials", ""))
    for index, row in enumerate(found):
        first = index == 0 or found[index - 1]["owner"] != row["owner"]
        table.add_row(
            row["owner"] if first else "",
            row["view"],
            f"{row['lower_bound']:.2f}",
            f"{row['lower_bound_of_noise']:.2f}",
            rounded_up(row["accounted"], 3),
            _number(row["budget"]),
            str(row["trials"]),
            "REJECTED" if row["rejected"] else "",
        )
    return table


def _head(report: Mapping[str, Any]) -> str:
    said = f"{report['method']} ({report['variant']}), {report['steps']} steps"
    if report["control"] is None:
        return said
    return f"[bold yellow]control: {CONTROLS[report['control']].description}[/]; {said}"


def _print_end(report: Mapping[str, Any], verdict: str) -> None:
    shown = results()
    shown.print(f"\n[bold]{verdict}[/]")
    if report["control"] is not None:
        expected = ", ".join(CONTROLS[report["control"]].caught_by)
        shown.print(f"This was a control with a known defect. Audits that catch it: {expected}.")
    shown.print(f"[yellow]{NOT_PRIVATE}[/]\nFolder: {report['folder']}")


def _end(report: Mapping[str, Any], folder: AuditFolder, output: OutputOptions, show: Callable[[], None]) -> None:
    folder.write("summary.json", json.dumps(report, indent=1) + "\n")
    if output.as_json:
        typer.echo(json.dumps(report))
    else:
        show()
    if report["rejected"] and report["control"] is None:
        raise typer.Exit(1)


def _check_run(folder: Path, audited: Audited) -> None:
    """Refuse a run of another study, or without the audited method, before anything is trained."""
    material = read_run(folder)
    labels = [row.label for row in material.rows]
    if material.title != audited.study.name or audited.study.config.method.name not in labels:
        raise InvalidArgumentError(
            f"into={str(folder)!r}: it is a run of {material.title} by {', '.join(labels)}; give one of "
            f"{audited.study.name} by {audited.study.config.method.name}"
        )


def _curves(owners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `inosgd.report.extras` reads about one row."""
    return {row["owner"]: {**row["roc"], "area": row["auc"], "highest_area": row["highest_auc"]} for row in owners}


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
