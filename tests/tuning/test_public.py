"""Tuning on public data: every candidate is trained, with every seed, and ranked."""

from __future__ import annotations

import pytest

from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.parallel.workers import Workers
from inosgd.tuning import Space, tune_on_public_data
from tests.studies import written_study

ALONE = Workers(jobs=1)


@pytest.fixture
def study(tmp_path):
    return written_study(tmp_path, ("[training]\n", '[training]\naccountant = "rdp"\n'))


def test_candidates_are_ranked_and_repeatable(study):
    space = Space({"learning_rate": (1e-9, 2.0)})
    seen = list(tune_on_public_data(study, space, seeds=2, workers=ALONE))
    assert len(seen) == 4
    ranked = seen[-1]
    assert len(ranked) == 2
    assert [each.mean for each in ranked] == sorted((each.mean for each in ranked), reverse=True)
    assert all(len(each.scores) == 2 for each in ranked)
    again = list(tune_on_public_data(study, space, seeds=2, workers=ALONE))[-1]
    assert [(each.candidate.label, each.scores) for each in again] == [
        (each.candidate.label, each.scores) for each in ranked
    ]


def test_a_candidate_that_cannot_be_trained_is_named(study, monkeypatch):
    from inosgd.tuning import public

    def only_small(task):
        if task.candidate.config.learning_rate > 1:
            raise InvalidArgumentError("too large")
        return original(task)

    original = public.run_trial
    monkeypatch.setattr(public, "run_trial", only_small)
    seen = []
    with pytest.raises(InosgdError, match=r"1 of 2 trainings failed.*learning_rate 2, seed 0: Invalid"):
        seen.extend(tune_on_public_data(study, Space({"learning_rate": (1.0, 2.0)}), workers=ALONE))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("options", "words"), [({"seeds": 0}, "seeds=0"), ({"by": "luck"}, "by='luck': choose one of overall, worst")]
)
def test_bad_requests_are_refused(study, options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        next(tune_on_public_data(study, Space({"learning_rate": (1.0, 2.0)}), **options))
