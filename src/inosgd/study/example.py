"""The example that ``inosgd new`` writes: a commented study of breast-cancer data, which runs as it is."""

from __future__ import annotations

import csv
import io

import numpy as np
from sklearn.datasets import load_breast_cancer

from inosgd.planning import Fairness

RANGES = {
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

OWNERS = ("hospital_a", "hospital_b", "clinic")
SHARES = {"malignant": (0.6, 0.3, 0.1), "benign": (0.1, 0.3, 0.6)}
"""Who holds which part of each class: the strictest hospital has most of the malignant cases."""


def example_study(data_name: str) -> str:
    """The text of the example, which reads its data from the file ``data_name``."""
    features = "\n".join(f'"{name}" = [{low:g}, {high:g}]' for name, (low, high) in RANGES.items())
    knobs = Fairness()
    parts = {
        "@DATA@": data_name,
        "@FEATURES@": features,
        "@EXPONENT@": f"{knobs.exponent:g}",
        "@MAX_RATIO@": f"{knobs.max_ratio:g}",
    }
    text = _TEXT
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def example_data() -> str:
    """A CSV table of 569 cases: ten measurements, the diagnosis, and an owner for each case."""
    bunch = load_breast_cancer()
    diagnoses = bunch.target_names[bunch.target]
    columns = [list(bunch.feature_names).index(name) for name in RANGES]
    owners = _owners(diagnoses)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*RANGES, "diagnosis", "owner"])
    for row, diagnosis, owner in zip(bunch.data, diagnoses, owners, strict=True):
        writer.writerow([*(f"{row[column]:g}" for column in columns), diagnosis, owner])
    return out.getvalue()


def _owners(diagnoses: np.ndarray[tuple[int, ...], np.dtype[np.str_]]) -> list[str]:
    """Each class is dealt out in its shares by a fixed seed."""
    owners = np.empty(len(diagnoses), dtype=object)
    rng = np.random.default_rng(0)
    for diagnosis, shares in SHARES.items():
        rows = np.flatnonzero(diagnoses == diagnosis)
        owners[rows] = rng.choice(np.array(OWNERS, dtype=object), size=len(rows), p=shares)
    return list(owners)


_TEXT = """\
# A study: data, what every owner allows, a model, and how it is trained.
#
#     inosgd train study.toml              trains it into a run folder
#     inosgd ledger RUN --verify           what every owner has spent
#     inosgd predict RUN/model new.csv     applies the model to new rows
#
# Paths are relative to this file. Keys that are commented out show their default, or another choice.

[data]
kind = "table"                    # "table" (CSV, TSV, Parquet), "images" (a folder), "npz" (NumPy arrays)
path = "@DATA@"                   # or a list of files with the same columns
target = "diagnosis"              # the column with the class
owner = "owner"                   # the column that says whose row it is; or, instead,
# epsilon = "epsilon"             # a column with a budget for each single row
classes = ["benign", "malignant"] # without this, the classes found in the training rows are used, and become public
outside_range = "refuse"          # a value outside its range is an error; "clamp" brings it to the end of the range
# unaccounted_scaling = true      # allows features without a range, fitted to the data: no budget accounts for that
# delimiter = ";"
# decimal = ","                   # what separates decimals; thousands = "." for 1.234,5
# missing = ["NA", "?"]           # texts that stand for a missing value beside empty cells; by default the usual ones
# drop_missing = ["diagnosis"]    # leave out rows without a value in these columns, also the owner's; else an error
# ignore = ["patient_id"]         # columns that are not used; others that are not used are reported

[data.held_out]                   # rows that the model is judged by and never trained on
fraction = 0.2                    # each row by a coin of its own; or path = "another-file.csv"
seed = 0

[data.features]                   # the columns that the model reads, with what is publicly known about them
@FEATURES@
# sex = ["f", "m"]                # categories
# smoker = "boolean"              # true or false, yes or no, 1 or 0
# visit = { date = ["2015-01-01", "2025-12-31"] }           # format = "%d.%m.%Y" if not ISO 8601; cycles = ["year"]
# age = { range = [0, 120], missing = 60 }                  # what stands for a missing value; public, so it is free
# ward = { categories = ["a", "b"], missing = "indicator" } # or an input that says that the value is missing
# note = { text = "words", max_length = 80 }     # text, read alone, for the model "lstm"

[budgets]                         # what each owner allows for each of its rows
delta = 1e-5                      # well below 1 / rows
# file = "budgets.csv"            # instead of the table below: a CSV file owner,epsilon[,delta]

[budgets.owners]
hospital_a = 1.0
hospital_b = 2.0
clinic = 8.0                      # or { epsilon = 8.0, delta = 1e-6 }

[model]
name = "mlp"                      # "mlp", "cnn", "lstm", or "package.module:factory" with --allow-factory
arguments = { hidden = [16] }

[training]
method = "ino-sgd-fair"           # "dp-sgd", "idp-sgd", "ino-sgd", "ino-sgd-fair"
# variant = "fair"                # "uniform", "sample", "scale", "both", "fair"; by default the method's own
accountant = "pld"                # or "rdp"
steps = 200                       # or leave it out and give a noise_scale: as many steps as the budgets allow
expected_batch_size = 64
clipping_threshold = 0.1
optimizer = "sgd"                 # "sgd", "adam", "adamw", "rmsprop", "adagrad"
learning_rate = 10.0
# tail = { shape = "beta", a = 1.0, b = 1.0, share = 0.5 }
# fairness = { exponent = @EXPONENT@, max_ratio = @MAX_RATIO@ }
# seed = 0                        # repeatable, and therefore not private: for trying things out

[evaluation]                      # of held-out rows
per_class = true
# every = 50                      # by default with every checkpoint, into metrics.jsonl
# owners_in_card = true           # list every owner's budget in the model's card
"""
