"""Results: what is kept of every training, appended as it comes, so that an interrupted study continues."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.analysis.evaluation import Evaluation
from inosgd.analysis.findings import Finding
from inosgd.compare.common import Common
from inosgd.compare.entrant import Entrant
from inosgd.errors import InvalidArgumentError
from inosgd.files import write_private
from inosgd.plan import Plan
from inosgd.planning.signals import signals
from inosgd.runs.keyed import new_key
from inosgd.study.study import StudyData


def result_key(entrant: Entrant, seed: int) -> str:
    """Which training this is within a study; what a row is called does not matter."""
    fields = {name: value for name, value in entrant.to_json().items() if name != "label"}
    return hashlib.sha256(json.dumps([fields, seed], sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class GroupTerms:
    """What a plan asks of a group: mean rate and threshold, the signal of all its examples, and spending.

    ``spent`` is empty where groups are not owners; ``spent_share`` is the largest share of a budget that an owner of
    the study has spent.
    """

    rates: dict[str, float]
    thresholds: dict[str, float]
    signals: dict[str, float]
    spent: dict[str, float]
    spent_share: float

    @classmethod
    def of(cls, plan: Plan, spent: FloatArray, data: StudyData) -> Self:
        """The terms of a finished training whose ledger has ``spent``."""
        terms, table = plan.at(0), plan.table
        per_example = signals(plan) / np.maximum(table.sizes, 1)
        counts = np.bincount(data.train_groups, minlength=len(data.groups.names))
        sizes = dict(zip(data.groups.names, counts.tolist(), strict=True))
        strength = group_means(per_example, data)
        return cls(
            group_means(terms.sampling_rates, data),
            group_means(terms.clipping_thresholds, data),
            {name: mean * sizes[name] for name, mean in strength.items()},
            dict(zip(table.names, spent.tolist(), strict=True)) if data.by_owner else {},
            float((spent / table.epsilons).max()),
        )


def group_means(values: FloatArray, data: StudyData) -> dict[str, float]:
    """Per group the mean over its units of training examples of a value that is given per owner."""
    of_units = values[data.owners.assignment]
    return {
        name: float(of_units[data.train_groups == row].mean())
        for row, name in enumerate(data.groups.names)
        if (data.train_groups == row).any()
    }


@dataclass(frozen=True, eq=False)
class Result:
    """One finished training, as it is kept."""

    key: str
    entrant: dict[str, Any]
    seed: int
    curve: tuple[Evaluation, ...]
    findings: tuple[Finding, ...]
    epsilons: dict[str, float]
    terms: GroupTerms
    noise_scale: float
    steps: int
    seconds: float
    scaling: str

    @classmethod
    def of(
        cls,
        entrant: Entrant,
        seed: int,
        plan: Plan,
        spent: FloatArray,
        curve: tuple[Evaluation, ...],
        findings: tuple[Finding, ...],
        seconds: float,
        data: StudyData,
    ) -> Self:
        """What is kept of a training."""
        return cls(
            key=result_key(entrant, seed),
            entrant=entrant.to_json(),
            seed=seed,
            curve=curve,
            findings=findings,
            epsilons=dict(zip(data.groups.names, data.groups.epsilons.tolist(), strict=True)),
            terms=GroupTerms.of(plan, spent, data),
            noise_scale=plan.at(0).noise_scale,
            steps=plan.steps,
            seconds=seconds,
            scaling=data.scaling,
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
            "findings": [finding.to_json() for finding in self.findings],
            "terms": self.terms.__dict__,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        curve = tuple(Evaluation.from_json(point) for point in fields["curve"])
        findings = tuple(Finding.from_json(each) for each in fields["findings"])
        return cls(**{**fields, "curve": curve, "findings": findings, "terms": GroupTerms(**fields["terms"])})


KEY = "data.key"
"""Beside results: as secret as the data, whose digest is made with it."""


class ResultStore:
    """Results of one comparison, in a file of JSON lines that only grows and that its user alone can read.

    The first line holds what they have in common. A line that a killed process left unfinished is dropped and its
    training done again.
    """

    def __init__(self, folder: Path, common: Callable[[bytes], Common]) -> None:
        self.path = folder / "results.jsonl"
        self.results: dict[str, Result] = {}
        kept = folder / KEY
        key = kept.read_bytes() if kept.is_file() else new_key()
        self.common = common(key)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(kept, key)
        if self.path.exists():
            self._continue()
        if not self.path.exists():
            self._append(self.common.to_json())

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

    def _continue(self) -> None:
        """Take over what is there, without a line that is not finished."""
        text = self.path.read_text(encoding="utf-8")
        whole, ended, torn = text.rpartition("\n")
        if torn:
            write_private(self.path, (whole + ended).encode())
        if not whole:
            self.path.unlink()
            return
        common, results = read_results(self.path)
        if common != self.common:
            raise InvalidArgumentError(
                f"{self.path}: it holds results of other settings or data; choose another folder, or remove it"
            )
        self.results = {result.key: result for result in results}


def read_results(path: Path) -> tuple[Common, list[Result]]:
    """What results have in common, and the finished ones; a line that is not finished is left out.

    Raises:
        InvalidArgumentError: If the file does not hold results.
    """
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    first, *lines = whole.splitlines() or [""]
    try:
        return Common.from_json(json.loads(first)), [Result.from_json(json.loads(line)) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"{path}: it does not hold results of inosgd compare ({error})") from None
