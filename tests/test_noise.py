"""Noise is Gaussian with the scale asked for, and rounded noise is the rounding of a real Gaussian number.

Power: with 400,000 numbers a Kolmogorov-Smirnov or chi-square test at 1e-6 finds a scale that is wrong by 2%.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from inosgd import noise
from inosgd.errors import InvalidArgumentError
from inosgd.noise import gaussian, rounded_gaussian
from inosgd.randomness import SecureSource, SeededSource

COUNT = 400_001


@pytest.mark.parametrize("source", [SeededSource(11), SecureSource()], ids=["seeded", "secure"])
def test_noise_is_gaussian_and_independent(source):
    drawn = gaussian(source, COUNT, 2.5).numpy()
    assert stats.kstest(drawn / 2.5, "norm").pvalue > 1e-6
    assert abs(stats.kurtosis(drawn)) < 6 * np.sqrt(24 / COUNT)
    half = (COUNT + 1) // 2
    pairs = np.corrcoef(drawn[: half - 1], drawn[half : 2 * half - 1])[0, 1]  # the two numbers of each pair
    squares = np.corrcoef(drawn[: half - 1] ** 2, drawn[half : 2 * half - 1] ** 2)[0, 1]
    assert max(abs(pairs), abs(squares)) < 6 / np.sqrt(half)


def test_a_scale_that_is_two_percent_short_is_caught():
    drawn = gaussian(SeededSource(11), COUNT, 0.98).numpy()
    assert stats.kstest(drawn, "norm").pvalue < 1e-6


def test_a_sum_of_uniforms_is_caught():
    drawn = np.random.default_rng(0).random((COUNT, 12)).sum(1) - 6
    assert abs(stats.kurtosis(drawn)) > 6 * np.sqrt(24 / COUNT)


def p_value_of_roundings(drawn: np.ndarray, scale: float) -> float:
    """Chi-square against the probabilities of rounded normal numbers, the tails from 3 on taken together."""
    edges = np.arange(-2.5, 3.0)
    cumulative = np.concatenate([[0.0], stats.norm.cdf(edges / scale), [1.0]])
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    return float(stats.chisquare(counts, np.diff(cumulative) * len(drawn)).pvalue)


def test_rounded_noise_has_the_probabilities_of_rounded_normal_numbers():
    drawn = rounded_gaussian(SeededSource(3), COUNT, 1.3).numpy()
    assert p_value_of_roundings(drawn, 1.3) > 1e-6
    assert p_value_of_roundings(drawn, 1.3 * 1.02) < 1e-6


@pytest.mark.parametrize("source", [SeededSource(5), SecureSource()], ids=["seeded", "secure"])
def test_rounded_noise_on_a_fine_grid_is_gaussian_and_independent(source):
    scale = 2.0**28 * 1.37
    drawn = rounded_gaussian(source, COUNT, scale).numpy()
    assert (drawn == np.round(drawn)).all()
    assert stats.kstest(drawn / scale, "norm").pvalue > 1e-6
    assert stats.kstest((drawn % 1024) / 1024, "uniform").pvalue > 1e-9  # the last ten bits
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 6 / np.sqrt(COUNT)


EXTREMES = [np.array([0, 0], dtype=np.uint64), np.array([2**64 - 1] * 2, dtype=np.uint64)]


LOOKS = {"_first_look": 0xFFF, "_extended": 1}
"""What is decided by less than 192 bits, and the bits of the first word that it does not look at."""

HARDEST = {"_first_look": noise.LARGEST_SCALE, "_extended": 2.0**53}
"""Scales at which many roundings are close to undecided; beyond what is allowed, for extended precision."""


def wrongly_decided(scale: float, pairs: int, look: str = "_first_look") -> int:
    """How many roundings a look decides that some choice of the further bits would decide otherwise."""
    words = SeededSource(8).words(2 * pairs).reshape(2, pairs)
    values, error = (np.asarray(each) for each in getattr(noise, look)(words, scale))
    nearest = np.rint(values)
    decided = np.abs(values - nearest) < 0.5 - error
    cell = words & ~np.uint64(LOOKS[look])
    wrong = np.zeros_like(decided)
    for low, more in zip((0, LOOKS[look]), EXTREMES, strict=True):
        exact = noise._last_look(cell | np.uint64(low), np.broadcast_to(more, (2, pairs, 2)), scale)
        wrong |= decided & (exact != nearest)
    return int(wrong.sum())


@pytest.mark.parametrize("look", LOOKS)
def test_what_a_look_decides_no_further_bit_could_change(look):
    assert wrongly_decided(2.0**28 * 1.9, 700, look) == 0
    assert wrongly_decided(HARDEST[look], 700, look) == 0


def test_what_the_second_look_leaves_is_decided_as_if_there_were_none(monkeypatch):
    left: list[int] = []
    last = noise._last_look

    def noted(words, more, scale):
        left.append(words.shape[1])
        return last(words, more, scale)

    def drawn() -> torch.Tensor:
        return rounded_gaussian(SeededSource(4), 1 << 16, noise.LARGEST_SCALE)

    monkeypatch.setattr(noise, "_last_look", noted)
    found = drawn()
    assert sum(left) < 10
    monkeypatch.setattr(noise, "_EXTENDED_ERROR", 2.0**-49)
    assert torch.equal(found, drawn())
    some = sum(left)
    assert some > 100
    monkeypatch.setattr(noise, "_second_look", noted)
    assert torch.equal(found, drawn())
    assert sum(left) > 3 * some


def test_without_extended_precision_all_is_looked_at_by_decimals(monkeypatch):
    expected = rounded_gaussian(SeededSource(4), 1 << 16, noise.LARGEST_SCALE)
    monkeypatch.setattr(np, "longdouble", np.float64)
    monkeypatch.setattr(noise, "_extended", None)
    assert torch.equal(expected, rounded_gaussian(SeededSource(4), 1 << 16, noise.LARGEST_SCALE))


@pytest.mark.parametrize("look", LOOKS)
def test_deciding_without_an_error_bound_is_caught(monkeypatch, look):
    monkeypatch.setattr(noise, look, _without_error(getattr(noise, look)))
    assert wrongly_decided(HARDEST[look], 700, look) > 0


def _without_error(look):
    def careless(words, scale):
        values, error = look(words, scale)
        return values, 0 * error

    return careless


@pytest.mark.parametrize("look", LOOKS)
def test_roundings_are_less_than_a_quarter_of_what_is_allowed_for_them(look):
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, (2, 600), dtype=np.uint64)
    words[0, :60] >>= np.arange(60, dtype=np.uint64)  # far tails
    words[0, 60:110] = ~(words[0, 60:110] >> np.arange(50, dtype=np.uint64))  # close to 1
    words[1, ::7] = (words[1, ::7] >> np.uint64(4)) + np.uint64(2**62)  # angles where cosine or sine is almost 0
    values = np.asarray(getattr(noise, look)(words, 1.0)[0])
    allowed, unseen = (noise._FLOAT_ERROR, 12) if look == "_first_look" else (noise._EXTENDED_ERROR, 1)
    mpmath.mp.dps = 40
    worst = 0.0
    for pair in range(words.shape[1]):
        u, v = (mpmath.mpf(2 * (int(word) >> unseen) + 1) / 2 ** (65 - unseen) for word in words[:, pair])
        radius = mpmath.sqrt(-2 * mpmath.log(u))
        exact = radius * mpmath.cos(2 * mpmath.pi * v), radius * mpmath.sin(2 * mpmath.pi * v)
        errors = [abs(exact[i] - exactly(values[i, pair])) for i in (0, 1)]
        worst = max(worst, float(max(errors) / (1 + radius)))
    assert worst < allowed / 4


def exactly(number) -> mpmath.mpf:
    """A float64 or an extended number, the latter in two parts."""
    high = float(number)
    return mpmath.mpf(high) + mpmath.mpf(float(number - high))


def test_sixty_digits_agree_with_another_library():
    mpmath.mp.dps = 70
    words = SeededSource(1).words(2 * 30).reshape(2, 30)
    more = SeededSource(2).words(4 * 30).reshape(2, 30, 2)
    found = noise._last_look(words, more, 2.0**39)
    for pair in range(30):
        u, v = (
            mpmath.mpf(2 * sum(int(w) << 64 * (2 - i) for i, w in enumerate([words[k, pair], *more[k, pair]])) + 1)
            / mpmath.mpf(2) ** 193
            for k in (0, 1)
        )
        radius = mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.mpf(2) ** 39
        assert found[0, pair] == int(mpmath.nint(radius * mpmath.cos(2 * mpmath.pi * v)))
        assert found[1, pair] == int(mpmath.nint(radius * mpmath.sin(2 * mpmath.pi * v)))


class Constant:
    """A source that always gives the same word."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, count):
        return np.full(count, self.word, dtype=np.uint64)


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
def test_the_rarest_words_give_finite_noise(word):
    drawn = rounded_gaussian(Constant(word), 4, 2.0**28)
    assert torch.isfinite(drawn).all()
    assert drawn.abs().max() <= 17 * 2.0**28


def test_shape_and_type():
    assert gaussian(SeededSource(0), 0, 1.0).shape == rounded_gaussian(SeededSource(0), 0, 1.0).shape == (0,)
    assert gaussian(SeededSource(0), 3, 0.0).tolist() == [0.0, 0.0, 0.0]
    assert gaussian(SeededSource(0), 5, 1.0).dtype == rounded_gaussian(SeededSource(0), 5, 1.0).dtype == torch.float64
    for count in (1, 7, noise._BLOCK - 1, noise._BLOCK + 3):
        assert rounded_gaussian(SeededSource(0), count, 1.0).shape == (count,)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_bad_scales_are_refused(scale):
    with pytest.raises(InvalidArgumentError, match="noise_scale"):
        gaussian(SeededSource(0), 1, scale)
    with pytest.raises(InvalidArgumentError, match="scale"):
        rounded_gaussian(SeededSource(0), 1, scale)


def test_a_scale_of_zero_or_beyond_precision_is_refused_where_noise_is_rounded():
    for scale in (0.0, noise.LARGEST_SCALE * 1.01):
        with pytest.raises(InvalidArgumentError, match="scale"):
            rounded_gaussian(SeededSource(0), 1, scale)
