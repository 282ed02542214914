"""The examples that ``inosgd new`` writes: commented studies of small medical tables, which run as they are."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from inosgd._arrays import BoolArray, FloatArray
from inosgd.planning import Fairness

BREAST_CANCER = {
    "mean radius": (5, 30),
    "mean texture": (5, 40),
    "mean perimeter": (40, 200),
    "mean area": (100, 3000),
    "mean smoothness": (0, 0.25),
    "mean compactness": (0, 0.5),
    "mean concavity": (0, 0.6),
    "mean concave points": (0, 0.3),
    "mean symmetry": (0, 0.5),
    "mean fractal dimension": (0, 0.15),
}
"""What is generally known about such measurements, wider than the data."""

DIABETES = {
    "age": (0, 120),
    "sex": (1, 2),
    "body mass index": (10, 60),
    "blood pressure": (40, 200),
    "cholesterol": (50, 400),
    "ldl": (0, 300),
    "hdl": (0, 150),
    "cholesterol by hdl": (0, 15),
    "log triglycerides": (2, 8),
    "glucose": (40, 250),
}

OWNERS = ("hospital_a", "hospital_b", "clinic")
SHARES = ((0.6, 0.3, 0.1), (0.1, 0.3, 0.6))
"""Who holds which part of the severe cases and of the others: the strictest hospital has most of the severe ones."""


@dataclass(frozen=True, eq=False)
class Cases:
    """Measurements, one row for each case, what is predicted of each, and which of them are severe."""

    measured: FloatArray
    targets: list[str]
    severe: BoolArray


@dataclass(frozen=True)
class Example:
    """A table, and what the study file says of it.

    Attributes:
        data: What the data are called.
        ranges: The public range of each measurement.
        target: The column that is predicted.
        cases: Reads the data.
        parts: What stands in the study file where its text has marks.
    """

    data: str
    ranges: Mapping[str, tuple[float, float]]
    target: str
    cases: Callable[[], Cases]
    parts: Mapping[str, str]


def example_study(data_name: str, task: str = "classification", *, units: bool = False) -> str:
    """The text of the example for a kind of task, which reads its data from the file ``data_name``.

    With ``units`` it protects each patient with all visits.
    """
    example = EXAMPLES[task]
    parts = {
        "@UNIT@": _UNIT if units else _NO_UNIT,
        "@PROTECTED@": "patients" if units else "rows",
        "@COIN@": "each patient, with all rows, by a coin of its own" if units else "each row by a coin of its own",
        "@PATH@": f'path = "{data_name}"'.ljust(34),
        "@FEATURES@": "\n".join(f'"{name}" = [{low:g}, {high:g}]' for name, (low, high) in example.ranges.items()),
        **example.parts,
    }
    return study_text(parts)


def study_text(parts: Mapping[str, str]) -> str:
    """The text of a study with ``parts`` in place of its marks; what is not given is as in the examples."""
    knobs = Fairness()
    given = {
        "@NOTATION@": "\n".join(NOTATION.values()),
        "@OWNER@": 'owner = "owner"                   # the column that says whose row it is; or, instead,',
        "@DELTA@": "1e-5",
        "@BATCH@": "64",
        "@BUDGETS@": _BUDGETS,
        "@EXPONENT@": f"{knobs.exponent:g}",
        "@MAX_RATIO@": f"{knobs.max_ratio:g}",
        **parts,
    }
    return re.sub("|".join(map(re.escape, given)), lambda mark: given[mark.group()], _TEXT)


def example_data(task: str = "classification", *, units: bool = False) -> str:
    """A CSV table: ten measurements of each case, what is predicted of it, and its owner.

    With ``units`` each case is a patient with one to five visits, in any order. They are made up: what was measured,
    with errors of 2 % and within the public ranges. A few patients went to two hospitals.
    """
    example = EXAMPLES[task]
    cases, out = example.cases(), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(["patient_id"] if units else []), *example.ranges, example.target, "owner"])
    owners = _owners(cases.severe)
    if not units:
        for row, target, owner in zip(cases.measured, cases.targets, owners, strict=True):
            writer.writerow([*(f"{value:g}" for value in row), target, owner])
        return out.getvalue()
    for patient, measured, owner in _visits(cases, list(example.ranges.values()), owners):
        cells = (f"{value:.5g}" for value in measured)
        writer.writerow([f"P{patient:04d}", *cells, cases.targets[patient], owner])
    return out.getvalue()


def _visits(
    cases: Cases, ranges: list[tuple[float, float]], owners: list[str]
) -> Iterator[tuple[int, FloatArray, str]]:
    """Patient, measurements and hospital of each visit, by a fixed seed."""
    rng = np.random.default_rng(1)
    patients = rng.permutation(np.repeat(np.arange(len(owners)), rng.integers(1, 6, len(owners))))
    low, high = np.array(ranges).T
    for patient in patients.tolist():
        measured = cases.measured[patient] * (1 + 0.02 * rng.standard_normal(len(ranges)))
        elsewhere = patient % 40 == 0 and rng.random() < 0.5
        yield patient, np.clip(measured, low, high), OWNERS[-1] if elsewhere else owners[patient]


def _breast_cancer() -> Cases:
    from sklearn.datasets import load_breast_cancer  # other commands need not wait for it

    bunch = load_breast_cancer()
    columns = [list(bunch.feature_names).index(name) for name in BREAST_CANCER]
    return Cases(bunch.data[:, columns], bunch.target_names[bunch.target].tolist(), bunch.target == 0)


def _diabetes() -> Cases:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    return Cases(bunch.data, [f"{value:g}" for value in bunch.target], bunch.target > np.median(bunch.target))


def _owners(severe: BoolArray) -> list[str]:
    """Severe cases, then the others, are dealt out in their shares by a fixed seed."""
    owners = np.empty(len(severe), dtype=object)
    rng = np.random.default_rng(0)
    for chosen, shares in zip((severe, ~severe), SHARES, strict=True):
        owners[chosen] = rng.choice(np.array(OWNERS, dtype=object), size=int(chosen.sum()), p=shares)
    return list(owners)


EXAMPLES = {
    "classification": Example(
        "569 rows of scikit-learn's breast-cancer data",
        BREAST_CANCER,
        "diagnosis",
        _breast_cancer,
        {
            "@TARGET@": """\
target = "diagnosis"              # the column with the class; or a list of columns, see [task]""",
            "@CLASSES@": """
classes = ["benign", "malignant"] # without this, the classes found in the training rows are used, and become public""",
            "@TASK@": """\
[task]
kind = "classification"           # or "multi-label", any of several columns of yes and no, or "regression", numbers
# range = [0, 400]                # of the numbers of a regression, by what is publicly known""",
            "@TRAINING@": """\
clipping_threshold = 0.1
optimizer = "sgd"                 # "sgd"; "adam", "adam-corrected", "adamw", "rmsprop", "adagrad" have the unit "batch"
learning_rate = 0.08
learning_rate_unit = "noise"      # the rate carries over to other plans and budgets; "batch" for the usual unit""",
            "@EVALUATION@": "per_class = true\n",
            "@SHARES@": """
# [shares]                        # which share of each owner's rows is of each class; "auto" adjusts the loss by it
# count = true                    # counted with noise, under the budgets; or declared, if it is public anyway:
# [shares.owners]
# hospital_a = { benign = 0.4, malignant = 0.6 }
""",
        },
    ),
    "regression": Example(
        "442 rows of scikit-learn's diabetes data",
        DIABETES,
        "progression",
        _diabetes,
        {
            "@TARGET@": """\
target = "progression"            # the column with the number; or a list of columns""",
            "@CLASSES@": "",
            "@TASK@": """\
[task]
kind = "regression"               # or "classification", or "multi-label", any of several columns of yes and no
range = [0, 400]                  # of the numbers, by what is publicly known; several targets may have one each
loss = "squared error"            # or "huber", which is bounded in what a single error pulls""",
            "@TRAINING@": """\
clipping_threshold = 0.5
optimizer = "sgd"                 # "sgd"; "adam", "adam-corrected", "adamw", "rmsprop", "adagrad" have the unit "batch"
learning_rate = 0.01
learning_rate_unit = "noise"      # the rate carries over to other plans and budgets; "batch" for the usual unit""",
            "@EVALUATION@": "",
            "@SHARES@": "",
        },
    ),
}
"""By kind of task."""

_UNIT = """\
unit = "patient_id"               # the column that says which rows are of one patient: budgets protect all of them
unit_name = "patient"             # what such a unit is called; by default after its column
max_rows = 4                      # of each patient that many rows are drawn for a step; by default all
# unit_gradient = "sum"           # of the gradients of its rows; "mean" by default. It is clipped once
# several_owners = "refuse"       # patients of several owners; "strictest" holds them to the smallest budget"""

_NO_UNIT = """\
# unit = "patient_id"             # a column that says which rows are of one person: budgets then protect all of them
# unit_name = "patient"           # what such a unit is called
# max_rows = 4                    # of each that many rows are drawn for a step; by default all"""

NOTATION = {
    "unaccounted_scaling": "# unaccounted_scaling = true      # allows features without a range, fitted to the data: "
    "no budget accounts for that",
    "delimiter": '# delimiter = ";"',
    "decimal": """# decimal = ","                   # what separates decimals; thousands = "." for 1.234,5""",
    "missing": '# missing = ["NA", "?"]           # texts that stand for a missing value beside empty cells; '
    "by default the usual ones",
    "drop_missing": '# drop_missing = ["owner"]        # leave out rows without a value in these columns, also '
    "targets; else an error",
    "ignore": '# ignore = ["patient_id"]         # columns that are not used; others that are not used are reported',
}
"""What a study file says of the notation of its tables, by key, where the default holds."""

_BUDGETS = """\
# file = "budgets.csv"            # instead of the table below: a CSV file owner,epsilon[,delta]

[budgets.owners]
hospital_a = 1.0
hospital_b = 2.0
clinic = 8.0                      # or { epsilon = 8.0, delta = 1e-6 }"""

_TEXT = """\
# A study: data, what every owner allows, a model, and how it is trained.
#
#     inosgd train study.toml              trains it into a run folder
#     inosgd ledger RUN --verify           what every owner has spent
#     inosgd predict RUN/model new.csv     applies the model to new rows
#
# Paths are relative to this file. Keys that are commented out show their default, or another choice.

# account = "sqlite:///accounts.db"  # adds up all trainings on the same rows: see inosgd account

[data]
kind = "table"                    # "table" (CSV, TSV, Parquet), "images" (a folder), "npz" (NumPy arrays)
@PATH@# or a list of files with the same columns
@TARGET@
@OWNER@
# epsilon = "epsilon"             # a column with a budget for each single row@CLASSES@
@UNIT@
outside_range = "refuse"          # a value outside its range is an error; "clamp" brings it to the end of the range
@NOTATION@

[data.held_out]                   # rows that the model is judged by and never trained on
fraction = 0.2                    # @COIN@; or path = "another-file.csv"
seed = 0

[data.features]                   # the columns that the model reads, with what is publicly known about them
@FEATURES@
# sex = ["f", "m"]                # categories
# smoker = "boolean"              # true or false, yes or no, 1 or 0
# visit = { date = ["2015-01-01", "2025-12-31"] }           # format = "%d.%m.%Y" if not ISO 8601; cycles = ["year"]
# age = { range = [0, 120], missing = 60 }                  # what stands for a missing value; public, so it is free
# ward = { categories = ["a", "b"], missing = "indicator" } # or an input that says that the value is missing
# note = { text = "words", max_length = 80 }     # text, read alone, for the model "lstm"

@TASK@

[budgets]                         # what each owner allows for each of its @PROTECTED@
delta = @DELTA@                      # well below 1 / @PROTECTED@
@BUDGETS@
@SHARES@
[model]
name = "mlp"                      # "mlp", "cnn", "lstm", or "package.module:factory" with --allow-factory
arguments = { hidden = [16] }

[training]
method = "auto"                   # "dp-sgd", "idp-sgd", "ino-sgd", "ino-sgd-fair", "threshold", "auto"
# variant = "fair"                # "uniform", "sample", "scale", "both", "fair", "threshold"; else the method's own
accountant = "pld"                # or "rdp"
steps = 200                       # or leave it out and give a noise_scale: as many steps as the budgets allow
expected_batch_size = @BATCH@
@TRAINING@
# averaging = "exponential"       # the model is an average of iterates; "tail" with averaging_share = 0.5; free
# averaging_decay = 0.9
# tail = { shape = "beta", a = 1.0, b = 1.0, share = 0.5 }
# fairness = { exponent = @EXPONENT@, max_ratio = @MAX_RATIO@ }
# seed = 0                        # repeatable, and therefore not private: for trying things out

[evaluation]                      # of held-out rows
@EVALUATION@# every = 50                      # by default with every checkpoint, into metrics.jsonl
# owners_in_card = true           # list every owner's budget in the model's card
# public = true                   # show these results to owners too (inosgd serve)
"""
