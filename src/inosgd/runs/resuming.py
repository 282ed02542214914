"""Resuming: a training that survives its machine.

    with run.lock() as locked:
        state = begin(locked, trainer, model, optimizer, SecureSource())     # or resume(...).state
        train_durably(locked, trainer, state, every=100)

Why a killed run costs nothing twice. A step is on disk in the ledger before its noisy sum exists. A checkpoint is
written after the step. So after a kill the ledger has every step that the checkpoints have, and perhaps some more,
whose outcome was only in memory. The resumed run has the model, the optimizer, the step and the state of every
random stream as they were; it draws the same samples, orders, masks and noise from them, with a seeded source and with
a secure one, and so computes the same bits as the first time. The ledger compares the streams and terms of each such
step with its record and charges nothing: one outcome was computed twice. `resume` refuses another plan, and by keyed
digests other owners, examples or methods: under the same noise, another sum would show its difference from the first.
What it cannot compare is code, that is the model's forward pass and the loss. Bits are the same on the same machine
with the same number of threads and processes (`inosgd.distributed` says how often on another number); where rounding
differs, the first outcome was never seen, because it died in memory (the steps of a published model are never computed
again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from inosgd.errors import CheckpointError, InvalidArgumentError
from inosgd.files import sha256
from inosgd.ledger.history import History
from inosgd.ledger.ledger import Ledger, Permission
from inosgd.randomness import RandomSource
from inosgd.runs.checkpoint import Checkpoint, erase_keys, has_all_keys, read_checkpoint
from inosgd.runs.digests import training_digests
from inosgd.runs.files import WITH_KEYS
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.runs.saving import copy_to_peers, restore
from inosgd.training import Callback, Trainer, TrainingState, fit
from inosgd.training import every as after_every


def begin(
    run: LockedRun | None,
    trainer: Trainer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: RandomSource,
    *,
    also: Mapping[str, Any] | None = None,
    data: bytes | None = None,
    permission: Permission | None = None,
) -> TrainingState:
    """The state before the first step, with a checkpoint of it.

    Args:
        run: A run that `RunFolder.create` made for ``trainer.plan``, locked. On many processes the first has it, and
            the others give None.
        trainer: What does not change.
        model: Initialised.
        optimizer: Of the model's parameters.
        source: Randomness; `SecureSource` for a model that is published.
        also: Whatever else changes with the steps and has a ``state_dict``, by name.
        data: What stands for the examples when `resume` asks whether they are the same, such as checksums of their
            files; without it, all of them are read, here and there.
        permission: What the ledger asks before each release, in the first process (`inosgd.accounts.draws`).
    """
    with trainer.peers.together():
        ledger = _new_ledger(LockedRun.of(run), trainer, data) if trainer.peers.first else None
    if ledger is not None:
        ledger.permission = permission
    state = TrainingState.start(trainer, model, optimizer, source, ledger, also)
    with trainer.peers.together():
        if trainer.peers.first:
            LockedRun.of(run).write_checkpoint(state)
    return state


def _new_ledger(run: LockedRun, trainer: Trainer, data: bytes | None) -> Ledger:
    ledger = run.open_ledger()
    try:
        if ledger.steps or run.checkpoints():
            raise InvalidArgumentError(f"run {str(run.path)!r} has begun already: resume it")
        _check_same_training(run, trainer, ledger, data)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _check_same_training(run: RunFolder, trainer: Trainer, ledger: Ledger, data: bytes | None) -> None:
    """Raise unless the run was begun with this plan, these owners and examples and this method; record new ones."""
    if sha256(trainer.plan.to_json().encode()) != ledger.plan:
        raise InvalidArgumentError("plan: it is not the one that the run goes by; build the trainer for run.plan()")
    found, recorded = training_digests(run.data_key(), trainer, data), ledger.history.data
    for what, digest in found.items():
        if recorded.get(what, digest) != digest:
            raise InvalidArgumentError(
                f"{what}: not what run {str(run.path)!r} was begun with, and noise of steps that were recorded would "
                f"cover something else; resume with the same {what}, or train anew"
            )
    if recorded != found:
        ledger.mark_data(found)


@dataclass(frozen=True)
class Resumed:
    """A restored state, and what there is to say about it: a torn record, a damaged checkpoint, replayed steps."""

    state: TrainingState
    messages: tuple[str, ...]


def resume(
    run: RunFolder,
    trainer: Trainer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: RandomSource | None = None,
    *,
    also: Mapping[str, Any] | None = None,
    data: bytes | None = None,
    permission: Permission | None = None,
) -> Resumed:
    """The state at the last good checkpoint.

    A newest checkpoint that is not the one that the ledger knows (damaged, forged, older, missing) is set aside, which
    is recorded, and the one before it is used. A run that was killed before its first
    checkpoint begins again, from ``model`` and ``source`` as they are given. After a change of budgets the streams
    are new ones: noise of steps that were given up is never used again under other terms.

    On many processes all call it, and they need not be as many as before. The first restores, and sends its state to
    the others, which read no more of the run than its ledger.

    Args:
        run: What was begun; in the first process, or the only one, locked.
        trainer: For ``run.plan()``, with the examples, owners and method of the run; another is refused.
        model: Of the same architecture.
        optimizer: Of the same class.
        source: For a run that was not begun yet.
        also: Whatever else was saved.
        data: As `begin` was given.
        permission: What the ledger asks before each release that is new, in the first process.

    Raises:
        InvalidArgumentError: If ``trainer`` is another training, or a file of the run is not what the ledger knows.
        LedgerError: If the ledger cannot be believed, or has lost records that a checkpoint knows of.
        CheckpointError: If no checkpoint can be used, or it does not fit ``model`` or ``optimizer``.
    """
    peers = trainer.peers
    with peers.together():
        ledger = _ledger(run, trainer)
    ledger.permission = permission
    try:
        with peers.together():
            if peers.first:
                _check_same_training(run, trainer, ledger, data)
        state = TrainingState.start(trainer, model, optimizer, source or peers.source(), ledger, also)
        with peers.together():
            messages = _restored(LockedRun.of(run), state, source) if peers.first else []
        copy_to_peers(peers, state)
    except BaseException:
        ledger.close()
        raise
    return Resumed(state, (*ledger.messages, *messages))


def _ledger(run: RunFolder, trainer: Trainer) -> Ledger:
    if trainer.peers.first:
        return LockedRun.of(run).open_ledger()
    return Ledger.in_memory(run.ledger_path, horizon=trainer.plan.steps)


def _restored(run: LockedRun, state: TrainingState, source: RandomSource | None) -> list[str]:
    """Bring ``state`` to the last good checkpoint, and say what there is to say about it."""
    run.checkpoints()  # raises if there is one that the ledger does not know
    history, messages = state.ledger.history, []
    checkpoint, spoiled = _newest_whole(run, history)
    if checkpoint is None:
        _check_unbegun(run, state.ledger, source)
    else:
        _check_not_before_publication(checkpoint, state.ledger)
        restore(checkpoint, state)
        _renew_after_change(checkpoint, state, source)
    messages += _set_aside(run, state.ledger, spoiled)
    run.forget_after(state.step)
    messages += _replay_message(state)
    if checkpoint is None or checkpoint.known.record < history.returned:
        run.write_checkpoint(state)
    return messages


def train_durably(
    run: RunFolder | None,
    trainer: Trainer,
    state: TrainingState,
    *,
    every: int,
    steps: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingState:
    """Take ``steps`` steps, by default all that are left, with a checkpoint after each ``every`` and at the end.

    Callbacks run before the checkpoint of their step, so what they change of ``state`` is in it. Of many checkpoints
    some are removed (`inosgd.runs.thinning`). Once
    the plan is finished and its last checkpoint is whole, no checkpoint keeps a key of its random streams. On many
    processes all call it; the first, which holds the lock, writes, and what the others give as ``run`` is not used.
    """
    if not trainer.peers.first:
        return fit(trainer, state, steps=steps, callbacks=callbacks)
    locked = LockedRun.of(run)
    recent = locked.checkpoints()

    def erase() -> None:
        while len(recent) > WITH_KEYS:
            erase_keys(recent.pop(0))

    def save(at: TrainingState) -> None:
        recent.append(locked.write_checkpoint(at))
        erase()
        locked.thin_checkpoints(at.ledger)

    erase()  # what a killed process had not come to
    fit(trainer, state, steps=steps, callbacks=[*callbacks, after_every(every, save)])
    if state.step % every:
        save(state)
    if state.step == trainer.plan.steps:
        for checkpoint in locked.checkpoints():
            erase_keys(checkpoint)
    return state


def _newest_whole(run: RunFolder, history: History) -> tuple[Checkpoint | None, dict[str, str]]:
    """The newest checkpoint that is what the ledger says; by name, why newer ones are not, and missing older ones."""
    spoiled: dict[str, str] = {}
    whole = None
    for known in reversed(history.in_order()):
        path = run.checkpoints_path / known.name
        if whole is None or not path.exists():
            try:
                whole = read_checkpoint(path, known)
            except CheckpointError as error:
                spoiled[known.name] = str(error)
    return whole, spoiled


def _set_aside(run: LockedRun, ledger: Ledger, spoiled: Mapping[str, str]) -> list[str]:
    """Hide checkpoints that cannot be used, and record that they are lost."""
    for name in spoiled:
        run.set_aside(name)
        ledger.mark_lost(name)
    return [f"{why}; it was set aside" for why in spoiled.values()]


def _check_unbegun(run: RunFolder, ledger: Ledger, source: RandomSource | None) -> None:
    if ledger.steps:
        raise CheckpointError(
            f"run {str(run.path)!r} has {ledger.steps} recorded steps and no whole checkpoint; restore one from a copy"
        )
    if source is None:
        raise CheckpointError(f"run {str(run.path)!r} has no checkpoint and has not begun: begin it, or give a source")


def _check_not_before_publication(checkpoint: Checkpoint, ledger: Ledger) -> None:
    """Refuse to compute the steps of a published model again: elsewhere rounding would differ under equal noise."""
    if checkpoint.step < ledger.published:
        raise CheckpointError(
            f"the model was published after step {ledger.published}, and the last whole checkpoint is after step "
            f"{checkpoint.step}; restore the checkpoint of the published model from a copy"
        )


def _renew_after_change(checkpoint: Checkpoint, state: TrainingState, source: RandomSource | None) -> None:
    """New random streams, if the ledger has a change or rollback that the checkpoint does not know of."""
    last = state.ledger.history.returned
    if checkpoint.known.record < last:
        state.streams = state.streams.renewed(f"after record {last}", source)


def same_noise_again(run: RunFolder) -> bool:
    """Whether a run that is resumed goes on with the noise that it had: steps that were lost come out as they were."""
    history = run.read_ledger().history
    checkpoint, _ = _newest_whole(run, history)
    return checkpoint is not None and checkpoint.known.record >= history.returned and has_all_keys(checkpoint)


def _replay_message(state: TrainingState) -> list[str]:
    again = state.ledger.steps - state.step
    if again == 0:
        return []
    return [f"{again} recorded steps after the checkpoint are computed again with the same draws and noise, at no cost"]
