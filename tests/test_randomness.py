"""Sources: repeatable where a seed is given, unpredictable and unshared where none is."""

from __future__ import annotations

import copy
import json
import os
import pickle

import numpy as np
import pytest
from scipy import stats

from inosgd.errors import InvalidArgumentError
from inosgd.randomness import (
    AgreedSource,
    SecureSource,
    SeededSource,
    integers_below,
    source_from_state,
    uniforms,
    without_key,
)


def test_a_seed_repeats_and_has_no_default():
    assert (SeededSource(1).words(100) == SeededSource(1).words(100)).all()
    assert (SeededSource(1).words(100) != SeededSource(2).words(100)).any()
    with pytest.raises(TypeError):
        SeededSource()  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="seed=-1"):
        SeededSource(-1)


def test_streams_do_not_disturb_each_other():
    source = SeededSource(4)
    noise = source.stream("noise")
    source.stream("sampling").words(1000)
    assert (noise.words(10) == SeededSource(4).stream("noise").words(10)).all()
    assert (SeededSource(4).stream("noise").words(10) != SeededSource(4).stream("order").words(10)).any()
    assert (SeededSource(4).stream("a").stream("b").words(4) != SeededSource(4).stream("ab").words(4)).any()


def test_secure_sources_never_repeat():
    drawn = [tuple(source.words(4)) for source in (SecureSource(), SecureSource(), SecureSource().stream("noise"))]
    assert len(set(drawn)) == 3
    assert "secure" in SecureSource().description


def test_a_forked_process_takes_a_key_of_its_own():
    source = SecureSource()
    source.words(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 32), dtype=np.uint64)
    os.close(reader), os.close(writer)
    assert (theirs != source.words(4)).all()


def test_a_key_is_gone_once_it_was_used():
    source = SecureSource()
    keys = [source.state()["key"]]
    for count in (0, 3, 1000):
        source.words(count)
        keys.append(source.state()["key"])
    assert len(set(keys)) == 4
    with pytest.raises(InvalidArgumentError, match="at most"):
        source.words(SecureSource.MOST_WORDS + 1)


def test_saved_keys_do_not_lead_back():
    """From the state after some words only later words follow: no function of ours gives an earlier one."""
    source = SecureSource()
    before = source.words(64)
    later = SecureSource.from_state(source.state())
    assert not np.isin(before, later.words(4096)).any()


@pytest.mark.parametrize("drawn", [0, 1, 2, 3, 4, 5, 1001])
@pytest.mark.parametrize("build", [lambda: SeededSource(5).stream("noise"), SecureSource], ids=["seeded", "secure"])
def test_a_restored_source_goes_on_with_the_same_words(build, drawn):
    source = build()
    source.words(drawn)
    restored = source_from_state(json.loads(json.dumps(source.state())))
    assert (restored.words(7) == source.words(7)).all()
    assert (restored.words(100) == source.words(100)).all()
    assert restored.description == source.description


def test_streams_of_a_restored_seeded_source_are_its_own():
    source = SeededSource(5).stream("noise")
    source.words(3)
    restored = source_from_state(source.state())
    assert (restored.stream("x").words(4) == source.stream("x").words(4)).all()


def test_an_erased_key_gives_another_source_and_a_seed_hides_nothing():
    secure, seeded = SecureSource(), SeededSource(1)
    assert without_key(secure.state()) == {"kind": "secure", "key": None}
    assert without_key(seeded.state()) == seeded.state()
    assert (source_from_state(without_key(secure.state())).words(4) != secure.words(4)).all()
    with pytest.raises(InvalidArgumentError, match="kind='coin'"):
        source_from_state({"kind": "coin"})


@pytest.mark.parametrize("source", [SeededSource(0), SecureSource()], ids=["seeded", "secure"])
def test_uniforms_are_uniform_and_open(source):
    drawn = uniforms(source, 200_000)
    assert 0 < drawn.min()
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-6


def test_the_uniformity_test_has_power():
    """A bias of two percent is caught."""
    skewed = uniforms(SeededSource(0), 200_000) ** 1.02
    assert stats.kstest(skewed, "uniform").pvalue < 1e-6


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**40, 2**63 - 1])
def test_integers_stay_below_their_bound(bound):
    drawn = integers_below(SeededSource(0), np.full(1000, bound))
    assert drawn.min() >= 0
    assert drawn.max() < bound


def test_integers_are_uniform_also_where_words_must_be_drawn_again():
    """With bound 2^63 + 2^62 + ... a quarter of the words would favour small residues; here: 3 x 2^61."""
    bound = 3 * 2**61
    drawn = integers_below(SeededSource(0), np.full(30_000, bound))
    counts = np.histogram(drawn, bins=12, range=(0, bound))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    biased = (SeededSource(0).words(30_000) % np.uint64(bound)).astype(np.int64)
    assert stats.chisquare(np.histogram(biased, bins=12, range=(0, bound))[0]).pvalue < 1e-4


@pytest.mark.parametrize("build", [SecureSource, lambda: AgreedSource(bytes(32))], ids=["secure", "agreed"])
@pytest.mark.parametrize(
    "twice",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda each: copy.deepcopy({"a": [each]})],
    ids=["copy", "deepcopy", "pickle", "inside"],
)
def test_secure_sources_are_not_copied_or_pickled(build, twice):
    source = build()
    with pytest.raises(InvalidArgumentError, match=r"is not copied or pickled.*give each training a SecureSource\(\)"):
        twice(source)
    source.words(1)  # it goes on


def test_seeded_sources_may_be_copied_and_copies_share_words():
    """The control: what a copy of a secure source would do."""
    source = SeededSource(3)
    source.words(5)
    for other in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert other.words(9).tolist() == SeededSource.from_state(source.state()).words(9).tolist()
