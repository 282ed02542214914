"""Surnames of 18 languages, one file each, as sequences of bytes.

A surname is written as UTF-8 bytes between a begin and an end symbol, with padding behind: `SYMBOLS` symbols, `LENGTH`
positions. A model reads it up to the end symbol. Bytes and length are constants, whatever the names. The encoding is
ours; the paper says only that characters are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inosgd._arrays import IntArray
from inosgd.data.files import read_text, refuse
from inosgd.paper.datasets.labelled import DataSet, LabelledExamples
from inosgd.paper.datasets.split import split_rows

# fmt: off
LANGUAGES = (
    "Arabic", "Chinese", "Czech", "Dutch", "English", "French", "German", "Greek", "Irish", "Italian", "Japanese",
    "Korean", "Polish", "Portuguese", "Russian", "Scottish", "Spanish", "Vietnamese",
)
# fmt: on

PADDING, BEGIN, END = 256, 257, 258
SYMBOLS = 259
LENGTH = 18


def load_names(folder: Path) -> DataSet:
    """Surnames as int64 of shape (18,); a fifth of each language is held out (`split_rows`).

    Surnames recur, above all the Arabic ones, so some held-out names are also trained on.
    """
    by_language = [_read(folder / "names" / f"{language}.txt") for language in LANGUAGES]
    inputs = np.concatenate([encode(names) for names in by_language])
    targets = np.repeat(np.arange(len(LANGUAGES)), [len(names) for names in by_language])
    train, test = split_rows(targets)
    return DataSet(
        name="names",
        train=LabelledExamples(inputs[train], targets[train]),
        test=LabelledExamples(inputs[test], targets[test]),
        classes=LANGUAGES,
    )


def encode(names: Sequence[str]) -> IntArray:
    """Each name as `LENGTH` symbols; one of more than ``LENGTH - 2`` bytes is cut.

    >>> encode(["Liú"])[0, :8].tolist()
    [257, 76, 105, 195, 186, 258, 256, 256]
    """
    symbols = np.full((len(names), LENGTH), PADDING, dtype=np.int64)
    for row, name in enumerate(names):
        framed = [BEGIN, *name.encode("utf-8")[: LENGTH - 2], END]
        symbols[row, : len(framed)] = framed
    return symbols


def _read(path: Path) -> list[str]:
    names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not names:
        raise refuse(path, "no surname in it; fetch the file again")
    return names
