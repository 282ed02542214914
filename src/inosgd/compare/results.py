"""Results: what is kept of every training, appended as it comes, so that an interrupted study continues."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from inosgd.analysis.evaluation import Evaluation
from inosgd.compare.entrant import Entrant
from inosgd.compare.run import Run, group_means
from inosgd.errors import InvalidArgumentError
from inosgd.planning import signals
from inosgd.study.study import StudyData


def result_key(entrant: Entrant, seed: int) -> str:
    """Which training this is within a study; what a row is called does not matter."""
    fields = {name: value for name, value in entrant.to_json().items() if name != "label"}
    return hashlib.sha256(json.dumps([fields, seed], sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class GroupTerms:
    """What a plan asks of a group: mean rate and threshold, the signal of all its examples, and spending.

    ``spent_share`` is the largest share of a budget that an owner of the study has spent.
    """

    rates: dict[str, float]
    thresholds: dict[str, float]
    signals: dict[str, float]
    spent_share: float

    @classmethod
    def of(cls, run: Run, data: StudyData) -> Self:
        """The terms of a finished run."""
        terms, table = run.plan.at(0), run.plan.table
        per_example = signals(run.plan) / np.maximum(table.sizes, 1)
        counts = np.bincount(data.train_groups, minlength=len(data.groups.names))
        sizes = dict(zip(data.groups.names, counts.tolist(), strict=True))
        strength = group_means(per_example, data)
        spent = np.array([run.spent[name] for name in table.names])
        return cls(
            group_means(terms.sampling_rates, data),
            group_means(terms.clipping_thresholds, data),
            {name: mean * sizes[name] for name, mean in strength.items()},
            float((spent / table.epsilons).max()),
        )


@dataclass(frozen=True, eq=False)
class Result:
    """One finished training, as it is kept."""

    key: str
    entrant: dict[str, Any]
    seed: int
    curve: tuple[Evaluation, ...]
    epsilons: dict[str, float]
    terms: GroupTerms
    noise_scale: float
    seconds: float
    scaling: str

    @classmethod
    def of(cls, run: Run, data: StudyData) -> Self:
        """What is kept of a run."""
        epsilons = dict(zip(data.groups.names, np.asarray(data.groups.epsilons).tolist(), strict=True))
        return cls(
            result_key(run.entrant, run.seed),
            run.entrant.to_json(),
            run.seed,
            run.curve,
            epsilons,
            GroupTerms.of(run, data),
            run.plan.at(0).noise_scale,
            run.seconds,
            data.scaling,
        )

    @property
    def final(self) -> Evaluation:
        """The evaluation after the last step."""
        return self.curve[-1]

    def at(self, share: float) -> Evaluation:
        """The last evaluation that is not later than this share of the steps (the first, if all are later)."""
        limit = share * self.final.step + 1e-9
        earlier = [point for point in self.curve if point.step <= limit]
        return earlier[-1] if earlier else self.curve[0]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self.__dict__,
            "curve": [point.to_json() for point in self.curve],
            "terms": self.terms.__dict__,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        curve = tuple(Evaluation.from_json(point) for point in fields["curve"])
        return cls(**{**fields, "curve": curve, "terms": GroupTerms(**fields["terms"])})


class ResultStore:
    """Results of one study with one configuration, in a file of JSON lines that only grows.

    The first line holds the configuration. A line that a killed process left unfinished is dropped and its training
    done again.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.path = folder / "results.jsonl"
        self.results: dict[str, Result] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._read(configuration)
        else:
            self._append(dict(configuration))

    @property
    def scaling(self) -> str:
        """How the features of this study came to be of order one."""
        return next((result.scaling for result in self.results.values()), "")

    def add(self, result: Result) -> None:
        """Keep a result, in memory and on disk."""
        self._append(result.to_json())
        self.results[result.key] = result

    def of(self, entrant: Entrant, seeds: Iterable[int]) -> list[Result]:
        """The results of an entrant, by seed; those that are not there are left out."""
        keys = [result_key(entrant, seed) for seed in seeds]
        return [self.results[key] for key in keys if key in self.results]

    def _append(self, fields: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, configuration: Mapping[str, Any]) -> None:
        text = self.path.read_text(encoding="utf-8")
        whole, _, torn = text.rpartition("\n")
        if torn:
            self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        lines = whole.splitlines()
        if not lines:
            self._append(dict(configuration))
            return
        if json.loads(lines[0]) != json.loads(json.dumps(configuration)):
            raise InvalidArgumentError(
                f"{self.path}: it holds results of other settings; choose another folder, or remove it"
            )
        found = [Result.from_json(json.loads(line)) for line in lines[1:]]
        self.results = {result.key: result for result in found}
