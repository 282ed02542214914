"""STUDY on the command line: a study file, a built-in study or one of the paper's, everywhere alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from inosgd.cli.options import STUDY_PANEL, STUDY_SETTINGS, StudySettings, settings
from inosgd.data.tables import closest
from inosgd.errors import InvalidArgumentError
from inosgd.method import METHODS
from inosgd.plan_config import VARIANTS
from inosgd.runs.folder import RunFolder
from inosgd.study.built_in import STUDIES
from inosgd.study.from_file import file_of, study_from
from inosgd.study.reading import read_study
from inosgd.study.running import run_description
from inosgd.study.sources import Progress
from inosgd.study.study import Study

StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study file, such as `inosgd new` writes, or the name of a study.")
]
AllowFactory = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=STUDY_PANEL, help="Import this package.module:factory, which the study names. It runs code."
    ),
]
Seed = Annotated[int, typer.Option(rich_help_panel=STUDY_PANEL, help="The seed of everything that is random.")]


@dataclass(frozen=True)
class StudyOptions:
    """How the study differs from what its file or its name says."""

    steps: Annotated[
        int | None, typer.Option(rich_help_panel=STUDY_PANEL, help="Steps of each training, instead of the study's.")
    ] = None
    changed: StudySettings = None
    allow_factory: AllowFactory = None

    @property
    def changes(self) -> dict[str, Any]:
        """What is to be different, by key of the training section."""
        steps = {} if self.steps is None else {"steps": self.steps}
        return steps | settings(self.changed, STUDY_SETTINGS)

    def find(self, text: str, progress: Progress | None = None, **changes: Any) -> Study:
        """The study that ``text`` names, with everything that is to be different."""
        return find_study(text, allow_factory=self.allow_factory, progress=progress, **changes, **self.changes)


@dataclass(frozen=True)
class MethodOptions(StudyOptions):
    """The same for a command that trains by one method."""

    method: Annotated[
        str | None, typer.Option(rich_help_panel=STUDY_PANEL, help=f"Another method: {', '.join(METHODS)}.")
    ] = None
    variant: Annotated[
        str | None, typer.Option(rich_help_panel=STUDY_PANEL, help=f"Another plan: {', '.join(VARIANTS)}.")
    ] = None


def find_study(
    text: str, *, allow_factory: str | None = None, progress: Progress | None = None, **changes: Any
) -> Study:
    """The study that ``text`` names or that is in the file at ``text``, with ``changes`` that are not None.

    The paper's studies are looked for in the folder of data sets, in the small scale.
    """
    return _found(text, allow_factory, progress).changed(
        {key: value for key, value in changes.items() if value is not None}
    )


def _found(text: str, allow_factory: str | None, progress: Progress | None) -> Study:
    path = Path(text)
    if path.suffix.lower() == ".toml" or path.is_file():
        return study_from(
            read_study(path, allowed_factory=allow_factory), allowed_factory=allow_factory, progress=progress
        )
    if text in STUDIES:
        return STUDIES[text]
    from inosgd.paper.datasets.location import data_folder
    from inosgd.paper.registry import SETTINGS, study_named

    if text in SETTINGS:
        return study_named(text, "laptop", data_folder(None))
    names = [*STUDIES, *SETTINGS]
    raise InvalidArgumentError(
        f"STUDY={text!r}: there is no such study file, nor a study of that name; {closest(text, names)}"
    )


def study_of_run(run: RunFolder, *, allow_factory: str | None = None, progress: Progress | None = None) -> Study:
    """The study that a run was made from, as its ledger knows it."""
    return found_again(run_description(run)["origin"], allow_factory=allow_factory, progress=progress)


def found_again(origin: Mapping[str, Any], *, allow_factory: str | None, progress: Progress | None = None) -> Study:
    """The study that was made from ``origin``."""
    changes = origin.get("changes", {})
    if origin["kind"] == "file":
        file = file_of(origin, allowed_factory=allow_factory)
        return study_from(file, allowed_factory=allow_factory, progress=progress).changed(changes)
    if origin["kind"] == "built-in":
        return STUDIES[origin["name"]].changed(changes)
    from inosgd.paper.registry import study_named

    return study_named(origin["name"], origin["scale"], Path(origin["data"])).changed(changes)
