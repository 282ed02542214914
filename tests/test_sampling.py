"""Each example is included independently with its own rate; the cost of a batch grows with the batch.

Power: with 4,000 batches the inclusion of a group is known to 1-2%, so a wrong rate of 10% is found with
probability above 1 - 1e-6 at a false-alarm rate of 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from inosgd import members, sampling
from inosgd.errors import InvalidArgumentError
from inosgd.randomness import SecureSource, SeededSource
from inosgd.sampling import PoissonSampler

BATCHES = 4000
RATES = np.array([0.002, 0.05, 0.5, 0.97])
OWNERS = np.repeat(np.arange(4), [400, 60, 8, 5])


def inclusions(draw, count: int, batches: int = BATCHES) -> np.ndarray:
    table = np.zeros((batches, count), dtype=bool)
    for row in table:
        row[draw()] = True
    return table


def rate_pvalue(table: np.ndarray, members: np.ndarray, rate: float) -> float:
    return stats.binomtest(int(table[:, members].sum()), table.shape[0] * int(members.sum()), rate).pvalue


def dispersion(table: np.ndarray, rates: np.ndarray) -> float:
    """The variance of the batch size over that of independent inclusions."""
    return float(table.sum(1).var(ddof=1) / (rates * (1 - rates)).sum())


@pytest.mark.parametrize("source", [SeededSource(1), SecureSource()], ids=["seeded", "secure"])
@pytest.mark.parametrize("most_groups", [4096, 1], ids=["exact groups", "thinned"])
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "counted"])
def test_every_group_has_its_rate_and_inclusions_are_independent(source, most_groups, listed, monkeypatch):
    monkeypatch.setattr(sampling, "MOST_GROUPS", most_groups)
    if not listed:
        monkeypatch.setattr(members, "LISTED", 0)
        monkeypatch.setattr(members, "SMALLEST_BLOCK", 64)
    sampler = PoissonSampler(RATES, OWNERS)
    table = inclusions(lambda: sampler.draw(source), len(OWNERS))
    for owner, rate in enumerate(RATES):
        assert rate_pvalue(table, OWNERS == owner, rate) > 1e-6
    per_example = table.sum(0)
    expected = BATCHES * RATES[OWNERS]
    chi_square = ((per_example - expected) ** 2 / (expected * (1 - RATES[OWNERS]))).sum()
    assert stats.chi2.sf(chi_square, len(OWNERS)) > 1e-6
    assert abs(dispersion(table, RATES[OWNERS]) - 1) < 6 * np.sqrt(2 / BATCHES)


def test_thinning_gives_every_record_its_own_rate(monkeypatch):
    """Many rates within one octave: some fall into one group, whose members keep points with their own share."""
    monkeypatch.setattr(sampling, "MOST_GROUPS", 2)
    rates = np.linspace(0.05, 0.1, 40)
    sampler, source = PoissonSampler(rates), SeededSource(2)
    assert sampler._groups._acceptance is not None
    table = inclusions(lambda: sampler.draw(source), len(rates), 20_000)
    pvalues = [rate_pvalue(table, np.arange(40) == i, rate) for i, rate in enumerate(rates)]
    assert min(pvalues) > 1e-6
    ceiling = [rate_pvalue(table, np.arange(40) == i, rates.max()) for i in range(10)]
    assert max(ceiling) < 1e-6  # without thinning every record of the group would have the group's largest rate


def test_successive_batches_are_independent():
    sampler, source = PoissonSampler(np.full(50, 0.2)), SeededSource(3)
    table = inclusions(lambda: sampler.draw(source), 50).astype(float)
    correlation = np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(table[:-1].size)


def test_rejected_batches_are_caught():
    """Control: sampling again until some owner is present is not Poisson sampling."""
    sampler, source = PoissonSampler(RATES, OWNERS), SeededSource(1)

    def draw_until_present():
        while True:
            batch = sampler.draw(source)
            if (OWNERS[batch] == 0).any():
                return batch

    table = inclusions(draw_until_present, len(OWNERS))
    assert rate_pvalue(table, OWNERS == 0, RATES[0]) < 1e-6


def test_batches_of_fixed_size_are_caught():
    """Control: a fixed batch size has the right rates and no independence."""
    rng = np.random.default_rng(0)
    table = inclusions(lambda: rng.choice(100, 20, replace=False), 100)
    assert abs(dispersion(table, np.full(100, 0.2)) - 1) > 6 * np.sqrt(2 / BATCHES)


def test_rates_of_zero_and_one():
    sampler = PoissonSampler(np.array([0.0, 1.0, 0.0, 1.0]))
    assert sampler.draw(SeededSource(0)).tolist() == [1, 3]
    assert PoissonSampler(np.zeros(5)).draw(SeededSource(0)).tolist() == []


def test_an_empty_batch_is_a_batch():
    source, sampler = SeededSource(0), PoissonSampler(np.full(3, 1e-9))
    batch = sampler.draw(source)
    assert batch.shape == (0,)
    assert batch.dtype == np.int64


def test_an_owner_without_examples_and_no_examples_at_all():
    assert PoissonSampler(np.array([0.5, 1.0]), np.zeros(0, dtype=np.int64)).draw(SeededSource(0)).tolist() == []
    assert set(PoissonSampler(np.array([0.5, 1.0]), np.ones(3, dtype=np.int64)).draw(SeededSource(0))) == {0, 1, 2}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 100))
def test_batches_are_sorted_distinct_and_in_range(rates, seed):
    batch = PoissonSampler(np.array(rates)).draw(SeededSource(seed))
    assert (np.diff(batch) > 0).all()
    assert all(0 <= i < len(rates) and rates[i] > 0 for i in batch)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=80),
    st.sampled_from([np.uint8, np.uint16, np.int64]),
    st.integers(0, 1000),
)
def test_batches_do_not_depend_on_how_members_are_kept(rates, rows, kind, seed):
    """So a run goes on with the same batches, whatever the size from which members are counted."""
    owners = np.array([row % len(rates) for row in rows], dtype=kind)
    listed = PoissonSampler(np.array(rates), owners)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "LISTED", 0)
        patch.setattr(members, "SMALLEST_BLOCK", 7)
        patch.setattr(members, "EXAMPLES_PER_COUNT", 1)
        counted = PoissonSampler(np.array(rates), owners)
    sources = SeededSource(seed), SeededSource(seed)
    for _ in range(3):
        assert listed.draw(sources[0]).tolist() == counted.draw(sources[1]).tolist()


def test_tiny_rates_are_not_inflated():
    """float32 uniforms inflate a rate of 1e-7 by 19%; here 2 million records are drawn 3,000 times."""
    rate, records, batches = 1e-7, 2_000_000, 3000
    sampler, source = PoissonSampler(np.array([rate]), np.zeros(records, dtype=np.int64)), SeededSource(5)
    drawn = sum(len(sampler.draw(source)) for _ in range(batches))
    assert stats.poisson.cdf(drawn, rate * records * batches) > 1e-6
    assert stats.poisson.sf(drawn, rate * records * batches) > 1e-6
    assert stats.poisson.cdf(drawn, 1.19 * rate * records * batches) < 1e-3


def test_the_cost_of_a_batch_does_not_grow_with_the_data(monkeypatch):
    """Words drawn, not seconds: 1,000 times the records at the same expected batch draw the same."""

    class Counting(SeededSource):
        drawn = 0

        def words(self, count):
            Counting.drawn += count
            return super().words(count)

    spent = []
    for records in (10_000, 10_000_000):
        Counting.drawn = 0
        PoissonSampler(np.array([100 / records]), np.zeros(records, dtype=np.int64)).draw(Counting(0))
        spent.append(Counting.drawn)
    assert spent[1] < 1.5 * spent[0]


@pytest.mark.parametrize("rates", [[-0.1], [1.1], [np.nan]])
def test_rates_outside_the_unit_interval_are_refused(rates):
    with pytest.raises(InvalidArgumentError, match=r"sampling_rate\[0\]"):
        PoissonSampler(np.array(rates))
