"""Candidates: every combination a valid configuration, and a section that can be put into a study file."""

from __future__ import annotations

import math
import tomllib

import pytest

from inosgd.errors import InosgdError
from inosgd.study.from_file import config_of
from inosgd.study.reading import parse_study
from inosgd.tuning import Space
from tests.studies import written_study


@pytest.fixture
def study(tmp_path):
    return written_study(tmp_path)


def test_every_combination_is_a_study(study):
    knobs = {"fairness.exponent": (2.0, math.inf), "fairness.max_ratio": (3.0,)}
    space = Space({"learning_rate": (1.0, 2.0), "variant": ("scale", "fair"), **knobs})
    found = space.candidates(study.config)
    assert [candidate.label for candidate in found] == [
        "variant scale, learning_rate 1",
        "variant scale, learning_rate 2",
        "variant fair, fairness.exponent 2, fairness.max_ratio 3, learning_rate 1",
        "variant fair, fairness.exponent 2, fairness.max_ratio 3, learning_rate 2",
        "variant fair, fairness.exponent inf, fairness.max_ratio 3, learning_rate 1",
        "variant fair, fairness.exponent inf, fairness.max_ratio 3, learning_rate 2",
    ]
    last = found[-1].config
    assert (last.learning_rate, last.plan.variant, last.plan.fairness.exponent, last.plan.steps) == (
        2.0, "fair", math.inf, 12
    )  # fmt: skip
    for candidate in found:
        text = study.file.text.partition("[training]")[0] + candidate.training_text(study.file)
        again = parse_study(text, study.file.path, study.file.folder)  # a section that can be put into the file
        assert config_of(again.schema.training) == candidate.config
    assert tomllib.loads(found[0].training_text(None)) == {"training": dict(found[0].changes)}


def test_a_tail_that_is_given_as_a_share_loses_its_length(tmp_path):
    tail = 'method = "ino-sgd"\ntail = { length = 3.0, a = 2.0 }'
    study = written_study(tmp_path, ('method = "idp-sgd"', tail))
    for candidate, share in zip(Space({"tail.share": (0.2, 0.4)}).candidates(study.config), (0.2, 0.4), strict=True):
        found = candidate.config.method.importance
        assert (found.share, found.length, found.shape.a) == (share, None, 2.0)
        tail = tomllib.loads(candidate.training_text(study.file))["training"]["tail"]
        assert tail == {"a": 2.0, "share": share}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "nothing to choose from"),
        ({"momentum": (0.1, 0.9)}, "key='momentum': choose one of variant"),
        ({"learning_rate": (1.0,)}, "nothing to choose from"),
        ({"learning_rate": (1.0, 1.0)}, "nothing to choose from"),
        ({"fairness.exponent": (1.0, 2.0)}, "nothing to choose from"),  # the study's plan is not fair
        ({"learning_rate": (1.0, math.nan)}, "learning_rate=nan"),
        ({"variant": ("scale", "best")}, "variant='best': choose one of"),
        ({"tail.share": (0.2, 0.4)}, "idp-sgd has no tail"),
        ({"variant": ("scale", "fair"), "fairness.exponent": (-1.0, 2.0)}, "exponent=-1"),
    ],
)
def test_bad_spaces_are_refused(study, space, words):
    with pytest.raises(InosgdError, match=words):
        Space(space).candidates(study.config)
