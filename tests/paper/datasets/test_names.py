from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.names import BEGIN, END, LANGUAGES, LENGTH, PADDING, SYMBOLS, encode, load_names
from tests.data.writers import write_names


@given(st.text(min_size=1, max_size=30))
def test_names_are_framed_and_padded_to_one_length(name: str) -> None:
    (symbols,) = encode([name])
    content = name.encode("utf-8")[: LENGTH - 2]
    assert symbols.shape == (LENGTH,)
    assert symbols.max() < SYMBOLS
    assert symbols[: len(content) + 2].tolist() == [BEGIN, *content, END]
    assert (symbols[len(content) + 2 :] == PADDING).all()


def test_languages_are_the_classes(tmp_path: Path) -> None:
    write_names(tmp_path, per_class=5)
    data = load_names(tmp_path)
    assert data.classes == LANGUAGES
    assert np.bincount(data.train.targets).tolist() == [4] * 18
    assert np.bincount(data.test.targets).tolist() == [1] * 18
    polish = data.train.inputs[data.train.targets == LANGUAGES.index("Polish")]
    assert polish[:, 1:7].tolist() == [list(b"Polish")] * 4


@pytest.mark.parametrize(
    ("content", "message"), [(b"\n \n", "no surname"), (b"M\xfcller\n", "not UTF-8 text (byte 1)")]
)
def test_unfit_files_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    write_names(tmp_path)
    (tmp_path / "names" / "German.txt").write_bytes(content)
    with pytest.raises(InvalidArgumentError) as caught:
        load_names(tmp_path)
    assert message in str(caught.value)
    assert "German.txt" in str(caught.value)
