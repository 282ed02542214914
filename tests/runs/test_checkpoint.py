"""A checkpoint is whole or not there, holds no code, fits only what was saved, and goes on to the same bits."""

from __future__ import annotations

import stat

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from inosgd import SecureSource, SeededSource, TrainingState, fit
from inosgd.errors import CheckpointError, InvalidArgumentError
from inosgd.runs.checkpoint import erase_keys, read_checkpoint
from inosgd.runs.saving import restore, write_checkpoint
from tests import tiny

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
}


def started(source=None, build=torch.optim.SGD, ledger=None, scheduled=False, **settings):
    trainer, model, optimizer = tiny.parts(tiny.PLAN, build, **settings)
    also = {"rate": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, tiny.STEPS)} if scheduled else {}
    return trainer, TrainingState.start(trainer, model, optimizer, source or SeededSource(3), ledger, also)


def step_schedule(state, _):
    for scheduler in state.also.values():
        scheduler.step()


@pytest.mark.parametrize("secure", [False, True], ids=["seeded", "secure"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_training_goes_on_to_the_same_bits(tmp_path, name, secure):
    build, settings = OPTIMIZERS[name]
    source = SecureSource() if secure else SeededSource(3)
    trainer, state = started(source, build, scheduled=True, **settings)
    fit(trainer, state, steps=5, callbacks=[step_schedule])
    saved = write_checkpoint(tmp_path, state)
    fit(trainer, state, callbacks=[step_schedule])
    expected, rate = tiny.bits(state.model), state.optimizer.param_groups[0]["lr"]

    trainer, again = started(SeededSource(99), build, state.ledger, scheduled=True, **settings)
    restore(saved, again)
    assert (again.step, again.ledger.steps) == (5, tiny.STEPS)
    records = again.ledger.position
    fit(trainer, again, callbacks=[step_schedule])
    assert tiny.bits(again.model) == expected
    assert again.optimizer.param_groups[0]["lr"] == rate
    assert again.ledger.position == records  # replayed, and charged nothing


def test_without_the_streams_a_replay_is_refused(tmp_path):
    """The negative control: the same checkpoint, other noise."""
    trainer, state = started(SecureSource())
    saved = write_checkpoint(tmp_path, state)
    fit(trainer, state, steps=2)
    erase_keys(saved)
    trainer, again = started(ledger=state.ledger)
    restore(read_checkpoint(saved.path, saved.known), again)
    with pytest.raises(InvalidArgumentError, match="other random streams, and would cost twice"):
        fit(trainer, again)


def test_files_are_private_and_loadable_without_us(tmp_path):
    trainer, state = started(build=torch.optim.Adam)
    fit(trainer, state, steps=1)
    saved = write_checkpoint(tmp_path, state)
    assert saved.path.name == "step-00000001.record-00000003"
    assert {path.name for path in saved.path.iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "streams.json",
    }
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in saved.path.iterdir())
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o700
    fresh = tiny.model()
    fresh.load_state_dict(load_file(saved.model_path))
    assert tiny.bits(fresh) == tiny.bits(state.model)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "streams.json"])
@pytest.mark.parametrize("damage", ["byte", "cut", "gone"])
def test_damage_is_found(tmp_path, name, damage):
    saved = write_checkpoint(tmp_path, started(build=torch.optim.Adam)[1])
    path = saved.path / name
    content = bytearray(path.read_bytes())
    if damage == "byte":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    if damage == "gone":
        path.unlink()
    with pytest.raises(CheckpointError, match=f"{saved.path.name} is damaged"):
        read_checkpoint(saved.path, saved.known)


def test_killed_while_writing_nothing_half_is_left_under_its_name(tmp_path, monkeypatch):
    """Whatever file the machine dies at, there is no checkpoint of that name, and the next attempt succeeds."""
    from inosgd.runs import saving

    _, state = started()
    original = saving.write_private
    for survive in range(2):
        written = []

        def dying(path, content, written=written, survive=survive):
            if len(written) == survive:
                raise KeyboardInterrupt
            written.append(path)
            original(path, content)

        monkeypatch.setattr(saving, "write_private", dying)
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(tmp_path, state)
        assert not list(tmp_path.glob("step-*"))
    monkeypatch.setattr(saving, "write_private", original)
    write_checkpoint(tmp_path, state)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000000.record-00000001"]


def test_other_models_and_optimizers_are_refused_by_key_and_left_alone(tmp_path):
    saved = write_checkpoint(tmp_path, started(build=torch.optim.Adam)[1])

    def refused(change, match):
        trainer, state = started(build=torch.optim.Adam)
        state = change(trainer, state) or state
        before = tiny.bits(state.model)
        with pytest.raises(CheckpointError, match=match):
            restore(saved, state)
        assert tiny.bits(state.model) == before

    def replaced(network, build=torch.optim.Adam):
        def change(trainer, state):
            return TrainingState.start(trainer, network, build(network.parameters(), lr=0.1), SeededSource(0))

        return change

    refused(replaced(tiny.model(7)), r"model key '0.weight': \(5, 6\) in the checkpoint and \(7, 6\) here")
    refused(replaced(tiny.model().double()), "model key '0.weight': torch.float32 in the checkpoint")
    refused(replaced(tiny.model()[:1]), "model key '3.weight' is in the checkpoint and not here")
    refused(replaced(tiny.model().append(nn.Linear(2, 2))), "model key '4.weight' is not in the checkpoint")
    refused(replaced(tiny.model(), torch.optim.SGD), "written with torch.optim.adam.Adam, this is torch.optim.sgd.SGD")

    def fewer(_, state):
        state.optimizer = torch.optim.Adam([next(state.model.parameters())])

    def more(_, state):
        state.also = {"rate": torch.optim.lr_scheduler.StepLR(state.optimizer, 1)}

    refused(fewer, r"groups of \[1\] parameters here and \[4\] in the checkpoint")
    refused(more, "also key 'rate' is not in the checkpoint")


def test_what_only_code_could_restore_is_refused(tmp_path):
    class Odd:
        def state_dict(self):
            return {"function": print}

    _, state = started()
    state.also = {"odd": Odd()}
    with pytest.raises(CheckpointError, match=r"key 'also.odd.function': a builtin_function_or_method"):
        write_checkpoint(tmp_path, state)
    assert not list(tmp_path.glob("step-*"))


def test_sources_that_cannot_be_saved_are_refused(tmp_path):
    class Strange:
        description = "strange"

        def words(self, count):
            return SeededSource(0).words(count)

        def stream(self, label):
            return self

    trainer, state = started(Strange())
    assert state.streams.fingerprint() is None
    fit(trainer, state, steps=1)
    with pytest.raises(CheckpointError, match="stream 'sampling': a Strange cannot be saved"):
        write_checkpoint(tmp_path, state)


def test_erased_keys_are_gone_from_the_disk(tmp_path):
    saved = write_checkpoint(tmp_path, started(SecureSource())[1])
    keys = [state["key"] for state in saved.streams.values()]
    everything = b"".join(path.read_bytes() for path in saved.path.iterdir())
    assert all(key.encode() in everything for key in keys)
    erase_keys(saved)
    everything = b"".join(path.read_bytes() for path in saved.path.iterdir())
    assert not any(key.encode() in everything for key in keys)
    read_checkpoint(saved.path, saved.known)


def test_formats_that_are_not_known_are_refused(tmp_path, monkeypatch):
    for module in ("checkpoint", "saving"):
        monkeypatch.setattr(f"inosgd.runs.{module}.CHECKPOINT_FORMAT", 3)
    saved = write_checkpoint(tmp_path, started()[1])
    monkeypatch.setattr("inosgd.runs.checkpoint.CHECKPOINT_FORMAT", 2)
    with pytest.raises(CheckpointError, match="format=3; this version reads format 2"):
        read_checkpoint(saved.path, saved.known)
