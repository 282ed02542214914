"""Streams: one source for each purpose, saved, restored and renewed as one value."""

from __future__ import annotations

import json

import numpy as np
import pytest

from inosgd.errors import CheckpointError, InvalidArgumentError
from inosgd.randomness import AgreedSource, SecureSource, SeededSource
from inosgd.streams import NAMES, Streams

SOURCES = {"seeded": lambda: SeededSource(3), "secure": SecureSource, "agreed": lambda: AgreedSource(bytes(32))}


def words(streams: Streams, count: int = 5) -> np.ndarray:
    return np.stack([getattr(streams, name).words(count) for name in NAMES])


@pytest.fixture(params=SOURCES)
def streams(request) -> Streams:
    return Streams.of(SOURCES[request.param]())


def test_streams_have_no_words_in_common(streams):
    assert len(np.unique(words(streams))) == 5 * 5


def test_restored_streams_go_on_with_the_same_words(streams):
    words(streams)
    again = Streams.from_state(json.loads(json.dumps(streams.state())))
    assert again.fingerprint() == streams.fingerprint()
    np.testing.assert_array_equal(words(again), words(streams))


def test_a_word_of_any_stream_changes_the_fingerprint(streams):
    seen = {streams.fingerprint()}
    for name in NAMES:
        getattr(streams, name).words(1)
        seen.add(streams.fingerprint())
    assert len(seen) == len(NAMES) + 1


def test_the_fingerprint_does_not_show_a_key():
    streams = Streams.of(SecureSource())
    keys = [state["key"] for state in streams.state().values()]
    assert not any(key in streams.fingerprint() for key in keys)


def test_renewed_streams_have_no_words_in_common_with_those_before(streams):
    before, after = words(Streams.from_state(streams.state())), words(streams.renewed("after record 7", None))
    assert not np.intersect1d(before, after).size


def test_processes_that_agreed_on_a_source_renew_alike_and_others_do_not():
    agreed = [Streams.of(AgreedSource(bytes(32))).renewed("x", AgreedSource(b"1" * 32)) for _ in range(2)]
    np.testing.assert_array_equal(*map(words, agreed))
    alone = [Streams.of(AgreedSource(bytes(32))).renewed("x", None) for _ in range(2)]
    assert not np.intersect1d(*map(words, alone)).size


def test_what_cannot_be_saved_has_no_fingerprint():
    streams = Streams.of(SeededSource(0))
    strange = Streams(streams.sampling, streams.order, object(), streams.masks, streams.rows)
    assert streams.savable
    assert not strange.savable
    assert strange.fingerprint() is None
    with pytest.raises(CheckpointError, match="stream 'noise': a object cannot be saved"):
        strange.state()


def test_states_that_are_none_are_refused():
    states = Streams.of(SeededSource(0)).state()
    with pytest.raises(KeyError, match="order"):
        Streams.from_state({name: state for name, state in states.items() if name != "order"})
    with pytest.raises(InvalidArgumentError, match="kind='coin'"):
        Streams.from_state({**states, "masks": {"kind": "coin"}})
