"""Of many checkpoints a run keeps those that a rollback can use: ends, published models, and no large gap between."""

from __future__ import annotations

import shutil
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd import SecureSource, SeededSource
from inosgd.ledger.history import KnownCheckpoint
from inosgd.runs import folder
from inosgd.runs.files import WITH_KEYS
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import resume, train_durably
from inosgd.runs.thinning import superfluous
from inosgd.runs.verification import verify_run
from tests import tiny

MOST = 6


def known(step: int, record: int = 0) -> KnownCheckpoint:
    return KnownCheckpoint(f"step-{step:08d}.record-{record:08d}", step, "", "", "", record)


def kept_of(steps: list[int], published: set[int], most: int) -> list[int]:
    gone = set(superfluous([known(step) for step in steps], published, most))
    return [step for step in steps if known(step).name not in gone]


def train(run: RunFolder, steps: int | None = None, source=None) -> bytes:
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan())
        state = resume(locked, trainer, model, optimizer, source).state
        try:
            train_durably(locked, trainer, state, every=1, steps=steps)
        finally:
            state.ledger.close()
    return tiny.bits(model)


@pytest.fixture
def thinned(tmp_path, monkeypatch) -> RunFolder:
    """A new run, which keeps few checkpoints."""
    monkeypatch.setattr(folder, "superfluous", lambda standing, published: superfluous(standing, published, MOST))
    return tiny.new_run(tmp_path)


@given(st.sets(st.integers(1, 500)), st.sets(st.integers(1, 500), max_size=4), st.integers(3, 20))
def test_ends_and_published_models_stay_and_gaps_are_small(others, published, most):
    steps = sorted({0, *others})
    kept = kept_of(steps, published, most)
    assert kept[0] == 0
    assert kept[-WITH_KEYS:] == steps[-WITH_KEYS:]
    assert published & set(steps) <= set(kept)
    assert len(kept) <= max(most, 1 + WITH_KEYS + len(published))


@pytest.mark.parametrize("most", [8, 64])
def test_written_one_by_one_no_gap_is_larger_than_the_bound(most):
    kept: list[int] = []
    for step in range(1000):
        kept = kept_of([*kept, step], set(), most)
        choices = most - WITH_KEYS  # all of one too many, but for the first and the newest
        gaps = [after - before for before, after in pairwise(kept)]
        assert max(gaps, default=0) <= max(1, 2 * step / choices)
    assert len(kept) == most


def test_keeping_only_the_newest_would_leave_a_gap():
    """The negative control: a rule that removes the oldest keeps as many, and rollbacks find the start alone."""
    steps = list(range(100))
    oldest_gone = [steps[0], *steps[-63:]]
    gap = max(after - before for before, after in pairwise(oldest_gone))
    assert gap > 2 * 100 / 62


@pytest.mark.parametrize("source", [SecureSource, lambda: SeededSource(3)], ids=["secure", "seeded"])
def test_a_run_goes_on_verifies_and_rolls_back(thinned, source):
    train(thinned, steps=10, source=source())
    steps = [checkpoint.step for checkpoint in thinned.checkpoints()]
    assert len(steps) == MOST
    assert (steps[0], *steps[-2:]) == (0, 9, 10)
    assert len(list(thinned.checkpoints_path.iterdir())) == MOST
    assert not verify_run(thinned).findings
    with thinned.lock() as locked:
        locked.roll_back(steps[-3])
    train(thinned)
    assert not verify_run(thinned).findings


def test_bits_do_not_depend_on_what_is_kept(thinned, tmp_path):
    bits = train(thinned, source=SeededSource(3))
    (tmp_path / "other").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "superfluous", lambda *_: [])
        assert train(tiny.new_run(tmp_path / "other"), source=SeededSource(3)) == bits


def test_the_model_that_was_published_stays(thinned):
    train(thinned, steps=3, source=SeededSource(3))
    with thinned.lock() as locked:
        locked.mark_published()
    train(thinned)
    assert 3 in [checkpoint.step for checkpoint in thinned.checkpoints()]
    assert not verify_run(thinned).findings


def test_a_published_model_that_was_thinned_would_be_found(thinned, monkeypatch):
    """The negative control: without the exception for published models, verification misses one."""
    monkeypatch.setattr(folder, "superfluous", lambda standing, _: superfluous(standing, (), 3))
    train(thinned, steps=3, source=SeededSource(3))
    with thinned.lock() as locked:
        locked.mark_published()
    train(thinned)
    assert verify_run(thinned).findings


@pytest.mark.parametrize("source", [SecureSource, lambda: SeededSource(3)], ids=["secure", "seeded"])
@pytest.mark.parametrize("gone", [(), ("state.json",), ("streams.json", "model.safetensors")])
def test_killed_between_the_record_and_the_removal(thinned, monkeypatch, gone, source):
    with monkeypatch.context() as killed:
        killed.setattr("inosgd.runs.folder.shutil.rmtree", lambda *_, **__: None)
        train(thinned, steps=8, source=source())
    standing = thinned.read_ledger().history.checkpoints
    left = [path for path in thinned.checkpoints_path.iterdir() if path.name not in standing]
    assert len(left) == 9 - MOST
    for name in gone:
        (left[0] / name).unlink()
    assert len(thinned.checkpoints()) == MOST
    report = verify_run(thinned)
    assert report.good
    assert sum("killed before it removed one of many" in note for note in report.notes) == len(left)
    train(thinned, steps=1)
    assert {path.name for path in thinned.checkpoints_path.iterdir()} == {
        checkpoint.path.name for checkpoint in thinned.checkpoints()
    }
    assert not verify_run(thinned).findings


def test_one_that_comes_back_with_its_keys_is_found(thinned, tmp_path):
    """The negative control: a copy from before its keys were erased leads to the noise of the steps after it."""
    train(thinned, steps=3, source=SecureSource())
    newest = thinned.checkpoints()[-1].path
    shutil.copytree(newest, tmp_path / "kept")
    train(thinned, steps=7)
    assert not newest.exists()
    shutil.copytree(tmp_path / "kept", newest)
    (finding,) = verify_run(thinned).findings
    assert f"checkpoint {newest.name} was given up" in finding.message
