"""INO-SGM on plain vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from inosgd import BetaTail, Budget, Owners, SeededSource
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.importance import Tail
from inosgd.mechanism import BoundedSum, combine, ino_sgm, release
from inosgd.plan import Terms

OWNERS = Owners.from_labels(
    ["a"] * 3 + ["b"] * 2, {"a": Budget(epsilon=1.0, delta=1e-5), "b": Budget(epsilon=5.0, delta=1e-5)}
)
VECTORS = torch.tensor([[3.0, 4.0], [0.0, 0.3], [1.0, 0.0], [-2.0, 0.0], [0.0, 8.0]], dtype=torch.float64)
SCORES = np.array([5.0, 4.0, 3.0, 2.0, 1.0])


def terms(rate=1.0, noise=0.0, thresholds=(1.0, 2.0)) -> Terms:
    return Terms.for_owners(OWNERS.table, np.full(2, rate), np.array(thresholds), noise)


def test_without_noise_and_tail_it_is_the_sum_of_clipped_vectors():
    total = ino_sgm(VECTORS, SCORES, OWNERS, terms(), SeededSource(0), tail=None)
    np.testing.assert_allclose(total, [0.6 + 0 + 1 - 2, 0.8 + 0.3 + 0 + 0 + 2], atol=1e-4)


def test_the_tail_takes_weight_from_the_lowest_scores():
    """Thresholds 1, 1, 1, 2, 2 in order; a straight tail of length 4 covers the last two examples by halves."""
    total = ino_sgm(VECTORS, SCORES, OWNERS, terms(), SeededSource(0), tail=Tail(BetaTail(), 4.0))
    np.testing.assert_allclose(total, [0.6 + 1 - 2 * 0.75, 0.8 + 0.3 + 2 * 0.25], atol=1e-4)


def test_the_noise_has_the_scale_of_the_terms_also_for_an_empty_batch():
    source = SeededSource(0)
    nothing = terms(rate=1e-12, noise=3.0)
    drawn = torch.cat([ino_sgm(VECTORS, SCORES, OWNERS, nothing, source, tail=None) for _ in range(2000)])
    assert stats.kstest(drawn.numpy() / 3.0, "norm").pvalue > 1e-6


def test_a_release_is_the_sum_plus_noise_whatever_the_sums_own_type():
    for dtype in (torch.float32, torch.float64):
        total = BoundedSum(torch.arange(40_000, dtype=dtype), np.ones(1))
        assert torch.equal(release(total, 0.0, SeededSource(0)), total.value)
        noise = release(total, 2.0, SeededSource(0)) - total.value.double()
        assert noise.dtype == torch.float64
        assert stats.kstest(noise.numpy() / 2.0, "norm").pvalue > 1e-6


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_a_sum_that_is_not_finite_is_refused_without_its_content(strange):
    with pytest.raises(InosgdError, match="sum over 3 coordinates is not finite"):
        BoundedSum(torch.tensor([0.123456, strange, 1.0]), np.ones(1))


def test_a_vector_of_nan_counts_as_zero_and_touches_no_other():
    vectors = VECTORS.clone()
    vectors[1] = float("nan")
    vectors[3, 0] = float("inf")
    total = ino_sgm(vectors, SCORES, OWNERS, terms(), SeededSource(0), tail=None)
    np.testing.assert_allclose(total, [0.6 + 1, 0.8 + 2], atol=1e-4)


def test_multiplying_by_zero_would_not_have_been_enough():
    vectors = torch.tensor([[float("nan")], [1.0]])
    assert torch.isnan(torch.tensor([0.0, 1.0]) @ vectors).all()
    assert combine(vectors, np.array([0.0, 1.0])).tolist() == [1.0]


def test_lengths_must_agree():
    with pytest.raises(InvalidArgumentError, match=r"len\(scores\)=4"):
        ino_sgm(VECTORS, SCORES[:4], OWNERS, terms(), SeededSource(0), tail=None)
