from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from inosgd.audit.lira import FORMS, leave_one_out_scores, scores_against
from inosgd.audit.roc import Roc
from inosgd.errors import InvalidArgumentError


def _experiment(models: int, examples: int, effect: float, seed: int = 0):
    rng = np.random.default_rng(seed)
    members = rng.random((models, examples)) < 0.5
    difficulty = rng.normal(0, 3, size=examples)
    return difficulty + rng.normal(size=(models, examples)) + effect * members, members


def test_leaving_one_out_is_scoring_against_the_others():
    confidences, members = _experiment(90, 7, 1.0)
    for form in FORMS:
        fast = leave_one_out_scores(confidences, members, form)
        for target in (0, 41, 89):
            others = np.arange(90) != target
            slow = scores_against(confidences[others], members[others], confidences[[target]], form)
            assert fast[target] == pytest.approx(slow[0], rel=1e-7, abs=1e-9)


def test_online_score_is_the_likelihood_ratio():
    confidences, members = _experiment(80, 5, 2.0)
    found = scores_against(confidences[:79], members[:79], confidences[79:], "online")[0]
    for example in range(5):
        values, present = confidences[:79, example], members[:79, example]
        inside, outside = (norm(part.mean(), part.std(ddof=1)) for part in (values[present], values[~present]))
        wanted = inside.logpdf(confidences[79, example]) - outside.logpdf(confidences[79, example])
        assert found[example] == pytest.approx(wanted, rel=1e-6)


def test_few_models_share_a_deviation():
    confidences, members = _experiment(20, 400, 0.0)
    scores = leave_one_out_scores(confidences, members, "offline")
    assert scores[np.isfinite(scores)].std() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("form", FORMS)
def test_finds_what_is_there_and_nothing_else(form):
    """Effect 1 has AUC 0.76 at best; without an effect the AUC of 12,800 pairs is 0.5 +- 0.015 (3 deviations)."""
    found = [
        Roc.of(leave_one_out_scores(*part, form).ravel(), part[1].ravel()).auc
        for part in (_experiment(128, 100, 1.0), _experiment(128, 100, 0.0))
    ]
    assert 0.73 < found[0] < 0.78
    assert found[1] == pytest.approx(0.5, abs=0.016)


def test_scoring_a_model_by_its_own_statistics_would_find_what_is_not_there():
    """The control of the test above: with few models, in-sample statistics favour the truth."""
    confidences, members = _experiment(16, 2000, 0.0)
    cheating = scores_against(confidences, members, confidences, "online")
    assert Roc.of(cheating.ravel(), members.ravel()).auc > 0.55
    honest = leave_one_out_scores(confidences, members, "online")
    usable = np.isfinite(honest)
    assert Roc.of(honest[usable], members[usable]).auc < 0.52


def test_refusals():
    confidences, members = _experiment(10, 3, 0.0)
    with pytest.raises(InvalidArgumentError, match="form='sideways'"):
        leave_one_out_scores(confidences, members, "sideways")
    with pytest.raises(InvalidArgumentError, match="models=4"):
        leave_one_out_scores(confidences[:4], members[:4], "online")
