"""UCI Cardiotocography: 2,126 recordings of fetal heart rate, 21 measurements each, judged by obstetricians.

Measurements are scaled by `RANGES`, which are ours: wide clinical ranges of the quantities, from their definitions
and from what monitors record (50 to 240 beats a minute), not from these recordings. A value outside its range counts
as the nearer end. So scaling costs no privacy.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inosgd._arrays import FloatArray
from inosgd.data.files import read_text, refuse
from inosgd.paper.datasets.labelled import DataSet, LabelledExamples
from inosgd.paper.datasets.split import split_rows

CLASSES = ("normal", "suspect", "pathologic")

RANGES: dict[str, tuple[float, float]] = {
    "LB": (100.0, 180.0),  # baseline, beats a minute; 110 to 160 is called normal
    "AC": (0.0, 0.02),  # accelerations a second; each lasts 15 seconds or more
    "FM": (0.0, 0.1),  # fetal movements a second
    "UC": (0.0, 0.02),  # contractions a second; 5 in 10 minutes is already many
    "DL": (0.0, 0.02),  # light decelerations a second
    "DS": (0.0, 0.005),  # severe decelerations a second; they last minutes
    "DP": (0.0, 0.005),  # prolonged decelerations a second; they last minutes
    "ASTV": (0.0, 100.0),  # per cent of time with abnormal short-term variability
    "MSTV": (0.0, 5.0),  # mean short-term variability, beats a minute
    "ALTV": (0.0, 100.0),  # per cent of time with abnormal long-term variability
    "MLTV": (0.0, 30.0),  # mean long-term variability, beats a minute; 5 to 25 is called normal
    "Width": (0.0, 190.0),  # of the histogram of heart rates, beats a minute
    "Min": (50.0, 160.0),
    "Max": (110.0, 240.0),
    "Nmax": (0.0, 20.0),  # peaks of the histogram
    "Nzeros": (0.0, 10.0),
    "Mode": (80.0, 190.0),
    "Mean": (80.0, 190.0),
    "Median": (80.0, 190.0),
    "Variance": (0.0, 150.0),
    "Tendency": (-1.0, 1.0),  # -1 left asymmetric, 0 symmetric, 1 right asymmetric
}
"""The range of each measurement that is scaled to -1 ... 1."""


def load_cardiotocography(folder: Path) -> DataSet:
    """21 measurements as float32 from -1 to 1; a fifth of each class is held out (`split_rows`)."""
    path = folder / "cardiotocography" / "CTG.csv"
    values, targets = _read(path)
    inputs = scale_measurements(values)
    train, test = split_rows(targets)
    return DataSet(
        name="cardiotocography",
        train=LabelledExamples(inputs[train], targets[train]),
        test=LabelledExamples(inputs[test], targets[test]),
        classes=CLASSES,
    )


def scale_measurements(values: FloatArray) -> npt.NDArray[np.float32]:
    """Measurements in the order of `RANGES`, cut to their ranges and scaled to -1 ... 1."""
    low, high = np.array(list(RANGES.values())).T
    scaled: FloatArray = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    return scaled.astype(np.float32)


def _read(path: Path) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    reader = csv.DictReader(read_text(path).splitlines())
    columns = [*RANGES, "NSP"]
    missing = [column for column in columns if column not in (reader.fieldnames or [])]
    if missing:
        raise refuse(path, f"no column {missing[0]!r}; the first line names the columns {','.join(columns)}")
    rows = [[_number(path, reader.line_num, column, row[column]) for column in columns] for row in reader]
    if not rows:
        raise refuse(path, "no recording below the column names; fetch the file again")
    table = np.array(rows)
    outcomes = table[:, -1]
    if not np.isin(outcomes, (1, 2, 3)).all():
        line = int(np.argmin(np.isin(outcomes, (1, 2, 3)))) + 2
        raise refuse(path, f"line {line}: NSP={outcomes[line - 2]:g}; it is 1 (normal), 2 (suspect) or 3 (pathologic)")
    return table[:, :-1], outcomes.astype(np.int64) - 1


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise refuse(path, f"line {line}: {column}={text!r} is not a number")
    return number
