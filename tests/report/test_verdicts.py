"""Verdicts: ties are called ties, and a lead is told only beyond chance."""

from __future__ import annotations

import dataclasses

import pytest

from inosgd.analysis.evaluation import Evaluation, OwnerQuality
from inosgd.report.marks import spanning
from inosgd.report.verdicts import leaders, verdict_of
from tests.report.materials import material_of


def rows(scores: dict[str, list[float]], examples: int = 200):
    """One result per seed with this score, overall and for the only owner."""
    made = material_of(names=("a",), methods=1).rows[0].results[0]

    def result(seed: int, score: float):
        final = Evaluation(10, score, {"a": OwnerQuality(score, 1.0, examples)}, 1.0, examples=examples)
        return dataclasses.replace(made, seed=seed, curve=(final,))

    return {label: [result(seed, score) for seed, score in enumerate(found)] for label, found in scores.items()}


def test_with_enough_seeds_paired_differences_decide():
    steady = {"x": [0.80, 0.82, 0.78, 0.81], "y": [0.78, 0.80, 0.76, 0.79], "z": [0.81, 0.79, 0.80, 0.78]}
    assert leaders(rows(steady), "overall") == ["x", "z"]  # y is below x by 2 points in every seed
    assert leaders(rows({name: [found[0]] for name, found in steady.items()}), "overall") == ["z", "x", "y"]


@pytest.mark.parametrize(("examples", "expected"), [(20, ["x", "y"]), (2000, ["x"])])
def test_with_one_seed_held_out_counts_decide(examples, expected):
    assert leaders(rows({"x": [0.80], "y": [0.70]}, examples), "worst") == expected


def test_no_lead_within_chance_is_told():
    tied = verdict_of(material_of(methods=3, seeds=1))
    assert "No method is ahead of the others in accuracy beyond chance" in tied
    assert "highest" not in tied


def test_axes_span_enough_and_stay_inside():
    for values in ([0.9], [0.0, 0.01], [0.999, 1.0], [0.4, 0.5]):
        low, high = spanning(values, 0.0, 1.0)
        assert high - low == pytest.approx(0.2)
        assert 0 <= low <= min(values)
        assert max(values) <= high <= 1
    assert spanning([0.1, 0.8], 0.0, 1.0) == [0.1, 0.8]
    assert spanning([], 0.0, 1.0) == [0.0, 0.2]
