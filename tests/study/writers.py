"""Small studies that train in a moment, for tests to use and to spoil."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

OWNERS = ("hospital_a", "hospital_b", "clinic")

STUDY = """\
[data]
kind = "table"
path = "cases.csv"
target = "ill"
owner = "owner"

[data.held_out]
fraction = 0.25
seed = 2

[data.features]
age = [0, 120]
sex = ["f", "m"]
dose = [-3, 3]

[budgets]
delta = 1e-5

[budgets.owners]
hospital_a = 1.0
hospital_b = 2.0
clinic = 8.0

[model]
name = "mlp"
arguments = { hidden = [4] }

[training]
method = "idp-sgd"
variant = "scale"
steps = 12
expected_batch_size = 16
clipping_threshold = 0.5
learning_rate = 2.0
"""


def table_text(rows: int = 90, seed: int = 0) -> str:
    """Cases whose illness follows the dose."""
    rng = np.random.default_rng(seed)
    lines = ["age,sex,dose,ill,owner"]
    for row in range(rows):
        dose = rng.normal()
        ill = "yes" if dose + 0.3 * rng.normal() > 0 else "no"
        lines.append(f"{rng.integers(1, 100)},{'fm'[row % 2]},{np.clip(dose, -3, 3):.4f},{ill},{OWNERS[row % 3]}")
    return "\n".join(lines) + "\n"


def write_study(folder: Path, *changes: tuple[str, str], data: str | bytes | None = None) -> Path:
    """The study with each first text of ``changes`` replaced by the second, and its table, or ``data`` instead."""
    text = STUDY
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{old!r} is not in the study")
        text = text.replace(old, new)
    content = table_text() if data is None else data
    (folder / "cases.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


EXPORTED = (
    'age = [0, 120]\nsex = ["f", "m"]\ndose = [-3, 3]',
    """\
age = { range = [0, 120], missing = 60 }
sex = { categories = ["f", "m", "None"], missing = "indicator" }
dose = { range = [-3, 3], missing = "indicator" }
visit = { date = ["2019-01-01", 2021-12-31], cycles = ["year", "week", "day"], missing = "2020-06-01" }
smoker = { boolean = true, missing = false }""",
)
"""Features of a table as programs export it, for `exported_rows`."""
DROPPED = ('owner = "owner"', 'owner = "owner"\nignore = ["id"]\ndrop_missing = ["ill", "owner"]')


def exported_rows(rows: int = 90) -> list[dict[str, Any]]:
    """The cases of `table_text` with an id, a date and a truth; every seventh cell of a column or so has no value."""
    lines = [line.split(",") for line in table_text(rows).splitlines()]
    found: list[dict[str, Any]] = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    for number, row in enumerate(found):
        moment = datetime.datetime(2019, 1, 1) + datetime.timedelta(hours=277 * number)
        row |= {"id": f"P{number:05d}", "visit": moment, "smoker": number % 3 == 0}
        row |= {"age": float(row["age"]), "dose": float(row["dose"])}
        if number % 5 == 2:
            row["sex"] = "None"
        for place, name in enumerate(row):
            rare = name in ("ill", "owner") and (number // 11) % 4
            if name != "id" and (number + 5 * place) % 11 == 0 and not rare:
                row[name] = None
    return found


def write_exported(path: Path, rows: Sequence[dict[str, Any]], row_group_size: int = 7) -> None:
    """A table as programs write it, by the end of its name: .csv, .tsv or .parquet."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=row_group_size)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        for number, row in enumerate(rows):
            nothing = ("", "NA", "?")[number % 3]
            writer.writerow({key: nothing if value is None else value for key, value in row.items()})


def write_images(folder: Path, count: int = 90, classes: int = 10, side: int = 28) -> None:
    """Grey shapes in folders owner/class: one bright bar per image, whose place is the class."""
    rng = np.random.default_rng(0)
    for number in range(count):
        label, owner = number % classes, OWNERS[(number // classes) % 3]
        pixels = rng.integers(0, 60, (side, side)).astype(np.uint8)
        start = 1 + label * (side - 4) // classes
        pixels[start : start + 3, 2:-2] = 255
        place = folder / owner / f"class_{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:04d}.png")


IMAGE_STUDY = """\
[data]
kind = "images"
path = "pictures"
layout = "owner/class"
size = [28, 28]
channels = 1

[budgets]
delta = 1e-5
owners = { hospital_a = 2.0, hospital_b = 4.0, clinic = 50.0 }

[model]
name = "cnn"
arguments = { first_width = 4, hidden = 8 }

[training]
method = "ino-sgd"
variant = "scale"
steps = 3
expected_batch_size = 30
clipping_threshold = 0.5
learning_rate = 0.5
seed = 3
"""
