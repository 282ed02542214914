"""The sensitivity bound under attack: about 20 seconds of `tests/adversary.py`; `checks/adversary.py` takes hours.

A finding is a `Case`: put it into `KNOWN`, so that it stays found.
"""

from __future__ import annotations

import math

import pytest
import torch

from inosgd.importance import BetaTail, StepTail
from tests.adversary import CHOICES, Case, Ranked, attacked, search, search_weights, weights_moved
from tests.mutants import MUTANTS, inaccurate_weights

trials = pytest.mark.parametrize("trials", [8, pytest.param(300, marks=pytest.mark.long)])
"""For each layer; a short search of all of them takes about eight seconds."""

KNOWN = {
    # Losses that differ with the batch change places in the order.
    "batch-dependent keys": Case("chain, kernel", tail="one step", size=32, tied=True, seed=2),
    # The same of losses that differ with where a batch lies in memory.
    "batches that are views": Case(
        "linear", tail="beta 1 1", size=8, ratio=10.0, tied=True, views=True, seed=1757322628
    ),
    "slices of batches": Case(
        "normalised weight",
        engine="reference",
        tail="steps",
        tail_share=0.9,
        clipping="auto",
        size=65,
        position=0.5,
        input_scale=38.0,
        gradient_scale=-5.0,
        cancel=-6.0,
        seed=1084154522,
    ),
    # The same of norms that differ with the length of the longest example.
    "packed sequences": Case("packed words", kernel=False, order="score", size=2, ratio=1e5, depth=8.0, seed=41306807),
    # The same of gradients that differ by less than roundings of a norm show, where there is no kernel.
    "small differences": Case(
        "tied words",
        kernel=False,
        losses="own, place first",
        order="score",
        tail="function",
        tail_share=0.1,
        size=100,
        position=0.5,
        ratio=1e5,
        depth=3.0,
        gradient_scale=-5.0,
        spread=0.0,
        wild=True,
        cancel=-5.0,
        views=True,
        seed=869212559,
    ),
    # Squares of norms, or what goes into them, are below what float32 can hold.
    "underflow": Case("linear", size=1, gradient_scale=-30.0, seed=1794453953),
    "underflow, wide": Case("linear, wide", size=1, input_scale=-12.0, gradient_scale=-22.6, seed=1135510848),
    "underflow, chain": Case("chain, kernel", size=1, gradient_scale=-30.0, seed=805195921),
    "underflow, wide chain": Case("chain, wide", size=1, gradient_scale=-22.6, seed=1328921823),
    "underflow, places": Case("linear, few places", size=1, input_scale=5.0, gradient_scale=-22.6, seed=273147041),
    "underflow, many places": Case(
        "linear, 400 places", size=2, depth=5.0, input_scale=18.5, gradient_scale=-22.6, spikes="inputs, gradients"
    ),
    "underflow, words": Case(
        "words, large table", size=1, depth=6.0, gradient_scale=-22.6, cancel=-5.0, seed=317616281
    ),
    "underflow, positions": Case("positions", size=1, gradient_scale=-30.0, seed=142885043),
    "underflow, few pixels": Case(
        "convolution, few pixels", size=1, input_scale=-43.0, gradient_scale=-22.6, cancel=-6.0, seed=1538591748
    ),
    "underflow, many pixels": Case("convolution, many pixels", size=1, gradient_scale=-30.0, seed=756330091),
    "underflow, groups": Case(
        "convolution, groups", size=1, input_scale=-38.0, gradient_scale=-19.0, cancel=-5.0, seed=1833985762
    ),
    "underflow, RNN": Case("RNN", size=1, input_scale=-43.0, gradient_scale=-30.0, seed=1433278404),
    "underflow, layer norm": Case(
        "layer norm",
        size=1,
        losses="given",
        input_scale=-12.0,
        gradient_scale=-19.0,
        spikes="inputs",
        cancel=-4.0,
        seed=1717169970,
        turned=1,
    ),
    "underflow, twice": Case(
        "twice, layer norm", size=1, input_scale=-43.0, gradient_scale=-19.0, cancel=-5.0, seed=921204964
    ),
    "underflow, words twice": Case("twice, words", size=1, gradient_scale=-30.0, seed=2070244638),
    "underflow, no rule": Case(
        "no rule", size=1, input_scale=-12.0, gradient_scale=-22.6, cancel=-math.inf, tied=True, seed=812337571
    ),
    # Contributions that cancel leave a gradient with other digits in another batch.
    "cancellation": Case("linear, many places", size=64, gradient_scale=-5.0, wild=True, cancel=-6.0, seed=1125942040),
    "cancellation, reference": Case(
        "linear, many places",
        engine="reference",
        size=2,
        ratio=1e3,
        input_scale=-5.0,
        gradient_scale=19.0,
        wild=True,
        cancel=-6.0,
        seed=512197758,
    ),
    "cancellation, layer norm": Case(
        "layer norm",
        losses="own, place first",
        size=5,
        depth=3.0,
        gradient_scale=-5.0,
        wild=True,
        cancel=-math.inf,
        seed=7079468,
    ),
    "cancellation, place first": Case(
        "linear, few places",
        losses="own, place first",
        size=65,
        ratio=150.0,
        depth=8.0,
        spread=0.001,
        spikes="inputs, gradients",
        cancel=-5.0,
        seed=2050581077,
        turned=4,
    ),
    # The same of gradients that change much with the last digit of what they are computed from.
    "saturated attention": Case("attention", torch.float64, size=2, input_scale=19.25, seed=1117463084),
    "saturated transformer": Case(
        "transformer", torch.float64, size=2, depth=8.0, input_scale=10.0, spikes="gradients", seed=402833713
    ),
}
"""What once came above 1, each as plain as it could be made."""

KNOWN_WEIGHTS = {
    "a tail that is not accurate at its end": Ranked(
        BetaTail(0.5, 0.5), 0.9, 2, 500, 251188.6431509581, few=0.5, position=0.6742136874492591, seed=116781240
    ),
    "steps": Ranked(
        StepTail((0.9835631738384202, 0.840491696844552, 0.3768203215897381)),
        1.0,
        10,
        1500,
        1e6,
        position=1.0,
        seed=234623552,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_found_before_is_within_the_bound(name):
    assert attacked(KNOWN[name]).ratio <= 1


@pytest.mark.parametrize("name", KNOWN_WEIGHTS)
def test_weights_that_were_found_before_are_within_the_bound(name):
    assert weights_moved(KNOWN_WEIGHTS[name]) <= 1


@trials
@pytest.mark.parametrize("layer", CHOICES["layer"])
def test_no_example_moves_the_sum_by_more_than_its_threshold(layer, trials):
    found = search(0, trials=trials, layer=layer, threads=1)
    assert found.ratio <= 1, found.worst


@trials
def test_no_example_moves_the_weights_by_more_than_its_threshold(trials):
    _, ratio, worst = search_weights(0, trials=50 * trials)
    assert ratio <= 1, worst


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_that_is_put_back_is_found(name):
    mutant = MUTANTS[name]
    found = search(1, trials=300, enough=1.0, settings=mutant.settings, threads=1, **mutant.fixed)
    assert found.ratio > 1
    assert attacked(found.worst).ratio <= 1  # without the fault


def test_a_tail_that_is_wrong_by_very_little_is_found():
    assert search_weights(0, trials=300, enough=1.0, weights=inaccurate_weights)[1] > 1


def test_an_attack_is_the_same_every_time():
    case = Case("linear", torch.float64, tail="steps", size=9, cancel=-math.inf, seed=5, turned=1)
    assert attacked(case) == attacked(case)
