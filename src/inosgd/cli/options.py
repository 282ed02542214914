"""Groups of options: each is a frozen dataclass, and a command that takes one has all of its options.

    @with_groups
    def compare_command(study: StudyArgument, *, workers: WorkerOptions, output: ReportOptions) -> None: ...

has ``--jobs``, ``--backend``, ``--address``, ``--out``, ``--report`` and ``--json``. The help of a command shows each
group in a panel of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from inosgd.errors import InvalidArgumentError

STUDY_PANEL, PLAN_PANEL, ACCOUNT_PANEL, WORKERS_PANEL, OUTPUT_PANEL = "Study", "Plan", "Account", "Workers", "Output"
PANELS = (STUDY_PANEL, PLAN_PANEL, ACCOUNT_PANEL, WORKERS_PANEL, OUTPUT_PANEL)
"""Of the options that several commands share."""

_BY_NAME = inspect.Parameter.KEYWORD_ONLY

PLAN_SETTINGS: Mapping[str, type] = {
    "accountant": str,
    "profile_margin": float,
    "fairness.exponent": float,
    "fairness.max_ratio": float,
    "fairness.mix": float,
}
"""Keys of a study's training section that ``inosgd plan --set`` takes, and the types of their values."""

STUDY_SETTINGS: Mapping[str, type] = {
    "learning_rate": float,
    "clipping_threshold": float,
    "expected_batch_size": float,
    "learning_rate_unit": str,
    "averaging": str,
    "schedule": str,
    "adjustment.tau": float,
    "adjustment.target": str,
    **PLAN_SETTINGS,
}
"""Those that ``--set`` takes where there is a study."""

AsJson = Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT_PANEL, help="Print JSON to standard output.")]
WithReport = Annotated[
    bool,
    typer.Option("--report/--no-report", rich_help_panel=OUTPUT_PANEL, help="Write report.html into the folder."),
]
AllowLargeDeltas = Annotated[
    bool,
    typer.Option("--allow-large-deltas", rich_help_panel=PLAN_PANEL, help="Plan for deltas of 1 / examples and more."),
]
PlanSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        rich_help_panel=PLAN_PANEL,
        help=f"Repeat it for several keys: {', '.join(PLAN_SETTINGS)}.",
    ),
]
StudySettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        rich_help_panel=STUDY_PANEL,
        help=f"A value instead of the study's; repeat it for several. Keys: {', '.join(STUDY_SETTINGS)}.",
    ),
]


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes, and in which form it is printed."""

    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=OUTPUT_PANEL, help="The folder of the result; a new one in runs/ if not given."),
    ] = None
    as_json: AsJson = False


@dataclass(frozen=True)
class ReportOptions(OutputOptions):
    """The same for a command that can write a report."""

    report: WithReport = True


@dataclass(frozen=True)
class AccountOptions:
    """Whose account a plan draws on."""

    account: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=ACCOUNT_PANEL,
            help="Plan for the owners of this account book, within what is left to them.",
        ),
    ] = None
    collection: Annotated[
        str | None,
        typer.Option(rich_help_panel=ACCOUNT_PANEL, help="Which collection, where there are several."),
    ] = None
    share: Annotated[float, typer.Option(rich_help_panel=ACCOUNT_PANEL, help="Which share of what is left.")] = 1.0


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with all options of a group in place of each parameter that is one."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [
        parameter.replace(annotation=hints[name], kind=_BY_NAME)
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(field.name, _BY_NAME, default=field.default, annotation=types[field.name])
            for field in fields(group)
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **built)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def pairs(option: str, texts: Sequence[str] | None, known: Mapping[str, type]) -> dict[str, str]:
    """From ``KEY=TEXT`` to texts by key."""
    found = {}
    for text in texts or ():
        key, separator, value = text.partition("=")
        if not (separator and value.strip()):
            raise InvalidArgumentError(f"{option}={text!r}: write KEY=VALUE, such as {next(iter(known))}=...")
        if key not in known:
            raise InvalidArgumentError(f"{option}={text!r}: choose a key of {', '.join(known)}")
        found[key] = value.strip()
    return found


def converted(option: str, key: str, text: str, kind: type) -> Any:
    """A value of a key from its text, which an option gave."""
    try:
        return kind(text)
    except ValueError:
        raise InvalidArgumentError(f"--{option} {key}={text!r}: give a number") from None


def settings(texts: Sequence[str] | None, known: Mapping[str, type]) -> dict[str, Any]:
    """The values that ``--set`` gives, by key.

    >>> settings(["fairness.exponent=inf", "accountant=rdp"], PLAN_SETTINGS)
    {'fairness.exponent': inf, 'accountant': 'rdp'}
    """
    return {key: converted("set", key, text, known[key]) for key, text in pairs("set", texts, known).items()}
