"""Names of rows, kept as small numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inosgd.study.labels import gathered, named

TEXTS = st.lists(st.text("abé", max_size=2), max_size=30)


def objects(texts: list[str]) -> np.ndarray:
    found = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found


@given(st.lists(TEXTS, max_size=4), st.lists(st.text("abé", max_size=2), unique=True, max_size=6))
def test_names_are_the_texts(pieces, known):
    texts = [text for piece in pieces for text in piece]
    names = gathered(objects(piece) for piece in pieces)
    assert list(names) == texts
    rows = np.arange(0, len(texts), 2)
    assert sorted(names.of(rows)) == sorted({texts[row] for row in rows})
    assert names.among(known, rows).tolist() == [known.index(texts[r]) if texts[r] in known else -1 for r in rows]


def test_few_names_take_a_byte_per_row_and_many_more():
    assert named(objects(["a", "b"] * 50)).codes.dtype == np.uint8
    many = named(objects([str(number) for number in range(70_000)]))
    assert many.codes.dtype == np.uint32
    assert many.among([str(number) for number in range(70_000)], np.arange(70_000)).tolist() == list(range(70_000))
