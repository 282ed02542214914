"""Candidates: every combination a valid study, and TOML that reads back."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inosgd.tuning.toml import toml_text

from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.study.reading import read_study
from inosgd.tuning import Space
from tests.study.writers import write_study

plain = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(keys, values, max_size=4))
def test_what_is_written_reads_back(tables):
    assert tomllib.loads(toml_text(tables)) == tables


def test_other_values_are_refused():
    with pytest.raises(InvalidArgumentError, match="TOML of a study"):
        toml_text({"when": object()})


@pytest.fixture
def study(tmp_path):
    return read_study(write_study(tmp_path))


def test_every_combination_is_a_study(study):
    space = Space(learning_rates=(1.0, 2.0), variants=("scale", "fair"), exponents=(2.0, math.inf), max_ratios=(3.0,))
    found = space.candidates(study)
    assert [candidate.label for candidate in found] == [
        "variant scale, learning_rate 1",
        "variant scale, learning_rate 2",
        "variant fair, fairness.exponent 2, fairness.max_ratio 3, learning_rate 1",
        "variant fair, fairness.exponent 2, fairness.max_ratio 3, learning_rate 2",
        "variant fair, fairness.exponent inf, fairness.max_ratio 3, learning_rate 1",
        "variant fair, fairness.exponent inf, fairness.max_ratio 3, learning_rate 2",
    ]
    last = found[-1].study.schema.training
    assert (last.learning_rate, last.variant, last.fairness.exponent, last.steps) == (2.0, "fair", math.inf, 12)
    assert found[-1].study.schema.data == study.schema.data
    assert tomllib.loads(found[0].training_text)["training"]["learning_rate"] == 1.0


def test_a_tail_that_is_given_as_a_share_loses_its_length(tmp_path):
    tail = 'method = "ino-sgd"\ntail = { length = 3.0, a = 2.0 }'
    study = read_study(write_study(tmp_path, ('method = "idp-sgd"', tail)))
    for candidate, share in zip(Space(tail_shares=(0.2, 0.4)).candidates(study), (0.2, 0.4), strict=True):
        found = candidate.study.schema.training.tail
        assert (found.share, found.length, found.a) == (share, None, 2.0)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "nothing to choose from"),
        ({"learning_rates": (1.0,)}, "nothing to choose from"),
        ({"learning_rates": (1.0, 1.0)}, "nothing to choose from"),
        ({"exponents": (1.0, 2.0)}, "nothing to choose from"),  # the study's plan is not fair
        ({"learning_rates": (1.0, math.nan)}, "learning_rates=nan"),
        ({"variants": ("scale", "best")}, "'best' is not one of"),
        ({"tail_shares": (0.2, 0.4)}, "idp-sgd has no tail"),
        ({"variants": ("scale", "fair"), "exponents": (-1.0, 2.0)}, "training.fairness.exponent"),
    ],
)
def test_bad_spaces_are_refused(study, space, words):
    with pytest.raises(InosgdError, match=words):
        Space(**space).candidates(study)
