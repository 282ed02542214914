"""What all trainings of a comparison have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from inosgd.analysis.task import Task
from inosgd.errors import InosgdError
from inosgd.gradients import parameter_count
from inosgd.owners import EXAMPLE
from inosgd.runs.keyed import keyed_digest
from inosgd.study.fingerprints import fingerprints_of
from inosgd.study.study import Study, StudyData, split_of


@dataclass(frozen=True)
class Common:
    """What all trainings of a comparison have in common: all that a report about them needs beside results.

    ``data`` is a keyed digest of the examples, with which nothing about them can be tested without the key. ``owners``
    has name, epsilon, delta and number of training examples of each group, or of its units; ``classes`` the name of
    each class and the group that holds it, None where that is not one group, or not the same for every seed; ``unit``
    is what each budget protects.
    """

    study: str
    data: str
    description: str
    model: str
    parameters: int
    config: dict[str, Any]
    task: Task
    held_out: str
    owners: tuple[tuple[str, float, float, int], ...]
    classes: tuple[tuple[str, str | None], ...]
    unit: str = EXAMPLE

    @classmethod
    def of(cls, study: Study, key: bytes, *, validation: bool = False) -> Self:
        """Of a study, in the split of its first seed; ``key`` is as secret as the data."""
        data = split_of(study, 0)
        stands_for = json.dumps(sorted(fingerprints_of(study, data).items()))
        return cls(
            study=study.name,
            data=keyed_digest(key, stands_for.encode()),
            description=study.description,
            model=study.model_name,
            parameters=parameter_count(study.model(data, 0)),
            config=study.config.to_json(),
            task=data.task,
            held_out="validation split of the training data" if validation else "test data",
            owners=_owners(data),
            classes=_classes(data, _other_split(study)),
            unit=data.owners.table.unit,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        rows = {name: tuple(tuple(row) for row in fields[name]) for name in ("owners", "classes")}
        return cls(**{**fields, **rows, "task": Task.from_json(fields["task"])})


def _owners(data: StudyData) -> tuple[tuple[str, float, float, int], ...]:
    groups, counts = data.groups, np.bincount(data.train_groups, minlength=len(data.groups.names))
    columns = (groups.names, groups.epsilons.tolist(), groups.deltas.tolist(), counts.tolist())
    return tuple(zip(*columns, strict=True))


def _other_split(study: Study) -> StudyData | None:
    """Another split; None if the data do not allow it, so that one seed can be compared by all the same."""
    try:
        return study.split(1)
    except InosgdError:
        return None


def _classes(first: StudyData, other: StudyData | None) -> tuple[tuple[str, str | None], ...]:
    """The name of each class and the one group that holds it, as far as two seeds agree on them."""
    second = other or first
    holders = [here if here == there else None for here, there in zip(*map(_holders, (first, second)), strict=True)]
    if first.task.names != second.task.names:
        return tuple((f"class {number}", None) for number in range(first.task.outputs))
    return tuple(zip(first.task.names, holders, strict=True))


def _holders(data: StudyData) -> list[str | None]:
    if data.task.kind != "classification":
        return [None] * data.task.outputs
    targets = data.examples.targets.numpy()
    groups = [np.unique(data.example_groups[targets == number]) for number in range(data.task.outputs)]
    return [data.groups.names[int(found[0])] if len(found) == 1 else None for found in groups]
