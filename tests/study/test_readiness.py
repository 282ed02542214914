"""What would weaken a training is found before it starts, by rules that are silent where nothing is wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from torch import nn

from inosgd.errors import InosgdError
from inosgd.method import AUTO
from inosgd.study.built_in import STUDIES
from inosgd.study.readiness import weaknesses
from inosgd.study.running import prepare

STUDY = STUDIES["digits"]


def kinds(study):
    return [finding.kind for finding in weaknesses(prepare(study))]


def with_data(study, **changes):
    return dataclasses.replace(study, split=lambda seed: dataclasses.replace(STUDY.split(seed), **changes))


def test_a_sound_study_has_no_weakness():
    assert kinds(STUDY) == []


def test_noise_that_no_gradient_stands_out_from():
    assert kinds(STUDY.changed({"expected_batch_size": 1})) == ["drowned", "seldom"]


def test_auto_without_class_shares():
    auto = dataclasses.replace(STUDY, config=STUDY.config.by(AUTO))
    assert kinds(auto) == []
    assert kinds(with_data(auto, shares=None)) == ["no-shares"]


def test_owners_that_few_examples_judge():
    held_out = STUDY.split(0).held_out
    ours = dataclasses.replace(held_out, groups=np.where(np.arange(len(held_out)) < 20, 0, 1))
    (finding,) = weaknesses(prepare(with_data(STUDY, held_out=ours)))
    assert (finding.kind, finding.evidence["owners"]) == ("few-judged", 1)


@pytest.mark.usefixtures("engine_tries_models")
def test_a_model_that_mixes_examples_is_refused_before_it_trains():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            return self.linear(x - x.mean(0))

    with pytest.raises(InosgdError, match="another loss"):
        prepare(dataclasses.replace(STUDY, model=lambda data, seed: Mixing()))
