"""Diabetes data of scikit-learn in six hospitals, as programs export them, with a number and two labels to predict."""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path
from typing import Any

from sklearn.datasets import load_diabetes

from tests.study.writers import write_exported

STUDY = """\
[data]
kind = "table"
path = "cases.csv"
target = @TARGET@
owner = "hospital"
drop_missing = @TARGETS@
ignore = ["id", "comment", "progression", "fast", "old"]

[data.held_out]
fraction = 0.25

[data.features]
age = [0, 120]
sex = ["f", "m"]
bmi = { range = [10, 60], missing = "indicator" }
visit = { date = ["2020-01-01", "2022-12-31"], missing = "2021-01-01" }
lipids = [0, 10]

[task]
@TASK@

[budgets]
delta = 1e-5
owners = { hospital_0 = 1, hospital_1 = 1, hospital_2 = 2, hospital_3 = 4, hospital_4 = 8, hospital_5 = 16 }

[model]
name = "mlp"
arguments = { hidden = [4] }

[training]
method = "ino-sgd"
variant = "scale"
accountant = "rdp"
steps = 4
expected_batch_size = 30
clipping_threshold = 0.5
learning_rate = 0.5
"""
TASKS = {
    "regression": (["progression"], 'kind = "regression"\nrange = [0, 400]\nloss = "huber"'),
    "several numbers": (["progression", "age"], 'kind = "regression"\nrange = [[0, 400], [0, 120]]'),
    "multi-label": (["fast", "old"], 'kind = "multi-label"'),
}


@cache
def _cases() -> tuple[tuple[list[float], float], ...]:
    bunch = load_diabetes(scaled=False)
    return tuple(zip(bunch.data.tolist(), bunch.target.tolist(), strict=True))


def diabetes_rows(count: int = 160) -> list[dict[str, Any]]:
    """Cases with an id, a date, and cells without a value."""
    rows: list[dict[str, Any]] = []
    for number, ((age, sex, bmi, _, _, _, _, _, lipids, _), progression) in enumerate(_cases()[:count]):
        row: dict[str, Any] = {
            "id": f"P{number:04d}",
            "visit": datetime.date(2020, 1, 1) + datetime.timedelta(days=number),
            "age": age,
            "sex": "fm"[int(sex) - 1],
            "bmi": None if number % 9 == 3 else bmi,
            "lipids": lipids,
            "progression": None if number % 40 == 7 else progression,
            "fast": None if number % 50 == 8 else ("yes" if progression > 140 else "no"),
            "old": int(age > 50),
            "hospital": f"hospital_{number % 6}",
        }
        rows.append(row)
    return rows


def write_diabetes(
    folder: Path,
    kind: str,
    *changes: tuple[str, str],
    rows: list[dict[str, Any]] | None = None,
    name: str = "cases.csv",
) -> Path:
    """A study of one of `TASKS`, with each first text of ``changes`` replaced by the second, and its table."""
    folder.mkdir(exist_ok=True)
    targets, task = TASKS[kind]
    shown = "[" + ", ".join(f'"{each}"' for each in targets) + "]"
    marks = [("@TASK@", task), ("@TARGETS@", shown), ("@TARGET@", shown if len(targets) > 1 else f'"{targets[0]}"')]
    ignored = [(f'"{each}", ', "") for each in targets if each == "progression"]
    ignored += [('"progression", "fast", "old"', '"progression"')] if "fast" in targets else []
    text = STUDY
    for old, new in (*ignored, *marks, ('"cases.csv"', f'"{name}"'), *changes):
        if old not in text:
            raise ValueError(f"{old!r} is not in the study")
        text = text.replace(old, new)
    if "age" in targets:
        text = text.replace("age = [0, 120]\n", "")
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    write_exported(folder / name, diabetes_rows() if rows is None else rows)
    return path
