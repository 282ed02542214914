"""Small studies that train in a moment, for tests to use and to spoil."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
