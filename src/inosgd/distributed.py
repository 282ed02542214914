"""One training on many processes: everything that they exchange, in one place.

    torchrun --nproc-per-node=4 program.py

    with connect() as peers:                                     # alone, where one process was launched
        trainer = Trainer(plan, owners, examples, losses, method, peers=peers)
        state = TrainingState.start(trainer, model, optimizer, peers.source())
        fit(trainer, state)                                      # every process ends with the same parameters

All processes hold the same plan, model, optimizer and random streams, so all draw the same batch. Example i belongs to
process i mod size, whatever else is in the batch, so that its own numbers do not depend on its neighbours. A step is
four exchanges:

    draw      6 bytes of each process: a digest of streams and batch, which must be the same in all
    measured  16 bytes per example: its loss and the norm of its gradient; ids and thresholds are known to all
    ready     1 byte of each process: its part of the sum is there, or it has failed; whether it drew dropout masks
    sum       the gradient once, in the type that the engine sums in

From what was measured every process computes the same order and weights over the whole batch. Examples and their
gradients never leave their process. The noise of a step comes from a stream that all hold in the same state: each adds
the same noise to the same sum, and none is sent.

Guarantee:
    The sum is that of one process on the same draws, up to rounding, so its sensitivity and what the ledger is charged
    are the same (`inosgd.rounding` charges for the additions in float32). The first process records the step when all
    parts are there and before it hands in its own: no process has the sum of a step that the ledger does not have. A
    process that fails before, takes all others along: nothing is recorded or released, and streams stand where they
    stood. A process that is lost ends the others with `PeerLostError`; if the step was recorded by then, it is computed
    again after ``inosgd resume`` at no cost.

The key of the random streams is made by all: each sends a digest of 32 bytes of its own, and then the bytes; the key is
a digest of all of them. No process can know it before all have committed themselves, nor choose it by waiting for the
others; a single honest process makes it uniform. (A process that dislikes it can still leave, which all others see.)

What is not protected: all processes hold the data and know the noise, and gloo and nccl do not encrypt. Run them on
machines and in a network that you trust as you trust one machine.

Rounding. In float64 the sums S and S' of two numbers of processes differ in their last bits. A release puts the sum on
a grid of spacing g, in general at least 2^-29 of the noise scale sigma (`inosgd.grid`), and this absorbs the difference
in all coordinates that have no boundary of the grid between S and S'. On average |S - S'|_1 / g of d coordinates in a
step have one; with roundings of 1e-16 |S| that is at most about 6e-8 sqrt(d) |S| / sigma. For a sum three times as long
as sigma it is one coordinate in 200,000 steps of a thousand parameters, and in 6,000 steps of a million; it then moves
by one step of the grid. Losses may differ in their last bits as well, and examples whose losses are that close may
change places. In float32 sums differ by more than the grid absorbs: they are equal up to rounding, and the same bits
come only from the same number of processes. Dropout masks are other ones on another number of processes, so steps that
were recorded with them are computed again on as many processes only.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from inosgd import _validate
from inosgd._arrays import FloatArray, IntArray
from inosgd.errors import InvalidArgumentError, PeerFailedError, PeerLostError
from inosgd.gradients.engine import Measured
from inosgd.randomness import AgreedSource, RandomSource, SecureSource, SeededSource

TIMEOUT = 600.0
"""Seconds that a process waits for the others: how much slower one may be in a step, or in reading the data."""

_DRAW_BYTES = 6
_MESSAGE_BYTES = 400
_FAILED, _READY, _READY_AND_DREW = b"\x00", b"\x01", b"\x02"
_HINTS = {
    "streams": ": the source that peers.source() returns",
    "parameters": ": build the model from the same seed in each",
}


@dataclass(frozen=True)
class Peers:
    """The processes of one training, as one of them sees them. `ALONE` is a training in one process.

    Attributes:
        rank: Which one this is, counted from 0. The first writes ledgers and files.
        size: How many there are.
        group: The torch process group that they meet in; None if there is one process.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and reports."""
        return self.rank == 0

    def source(self, seed: int | None = None) -> RandomSource:
        """A source of randomness that all processes share; with a ``seed``, one that repeats itself.

        Guarantee:
            Without a seed and if at least one process is honest, the key is uniform and unknown to any party that does
            not read what the processes send each other; see the module.
        """
        if seed is not None:
            self.check_same(seed=seed)
            return SeededSource(seed)
        return SecureSource() if self.size == 1 else AgreedSource(self._agreed_key())

    def check_same(self, **values: object) -> None:
        """Raise in every process unless each value, as text or bytes, is the same in all of them."""
        digests = self.bytes_of_all(b"".join(_digest(value) for value in values.values()))
        for index, name in enumerate(values):
            part = slice(32 * index, 32 * (index + 1))
            others = [rank for rank, each in enumerate(digests) if each[part] != digests[0][part]]
            if others:
                raise InvalidArgumentError(
                    f"{name}: process {others[0]} of {self.size} has another one than process 0; give every process "
                    f"the same{_HINTS.get(name, '')}"
                )

    @contextmanager
    def together(self) -> Iterator[None]:
        """If the block raises in one process, no process goes on behind it: the others raise `PeerFailedError`.

        The block itself exchanges nothing.
        """
        try:
            yield
        except Exception as error:
            self.tell_failure(error)
            raise
        self.check_all_ready()

    @contextmanager
    def batch(self, indices: IntArray, streams: str | None) -> Iterator[SharedBatch]:
        """The batch of one step, of which this process computes its share; a failure of one is a failure of all.

        Args:
            indices: The examples of the batch, the same in all processes.
            streams: A digest of the states of the random streams that the step draws from.
        """
        shared = SharedBatch(self, indices, streams)
        self._check_same_draw(indices, streams)
        try:
            yield shared
        except (PeerFailedError, PeerLostError):
            raise
        except Exception as error:
            shared.fail(error)
            raise

    def bytes_of_all(self, mine: bytes) -> list[bytes]:
        """What each process gives, by rank; all give equally many bytes."""
        if self.size == 1:
            return [mine]
        value = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        return [bytes(each.tolist()) for each in self.gathered(value)]

    def from_first(self, content: bytes) -> bytes:
        """What the first process gives; what the others give is not looked at."""
        if self.size == 1:
            return content
        length = int.from_bytes(self.bytes_of_all(len(content).to_bytes(8, "little"))[0], "little")
        value = torch.frombuffer(bytearray(content if self.first else length), dtype=torch.uint8)
        self._exchange(dist.broadcast, value, group_src=0)
        return value.numpy().tobytes()

    def gathered(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all processes, by rank; all have the same shape and type."""
        parts = [torch.empty_like(value) for _ in range(self.size)]
        self._exchange(dist.all_gather, parts, value)
        return parts

    def added(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all processes: the same bits in each. ``value`` is overwritten with it."""
        self._exchange(dist.all_reduce, value)
        return value

    def check_all_ready(self, mine: bytes = _READY) -> list[bytes]:
        """Wait until every process is here, and return what they say; if one has failed, raise in all others."""
        states = self.bytes_of_all(mine)
        if _FAILED in states:
            self.raise_failure()
        return states

    def tell_failure(self, error: Exception) -> None:
        """Let the others, who are waiting in `check_all_ready`, know that this process has failed."""
        if self.size > 1:
            with suppress(PeerLostError):
                self.bytes_of_all(_FAILED)
                self.give_reason(error)

    def give_reason(self, error: Exception) -> None:
        """Say to the others, who are waiting in `raise_failure`, why this process has failed."""
        self.bytes_of_all(_message(error))

    def raise_failure(self) -> NoReturn:
        """Raise what the processes that have failed give as their reason."""
        said = [each.rstrip(b"\x00").decode(errors="replace") for each in self.bytes_of_all(_message(None))]
        rank = next((rank for rank, message in enumerate(said) if message), 0)
        reason = said[rank] or "the sum over all processes is not finite"
        raise PeerFailedError(rank, f"process {rank} of {self.size} failed, and all stop with it: {reason}")

    def _agreed_key(self) -> bytes:
        mine = os.urandom(32)
        commitments = self.bytes_of_all(_commitment(self.rank, mine))
        contributions = self.bytes_of_all(mine)
        for rank, contribution in enumerate(contributions):
            if _commitment(rank, contribution) != commitments[rank]:
                raise PeerFailedError(
                    rank, f"process {rank} sent other randomness than it had committed itself to; do not train with it"
                )
        return hashlib.sha256(b"inosgd key" + b"".join(contributions)).digest()

    def _check_same_draw(self, indices: IntArray, streams: str | None) -> None:
        """With other batches examples could count twice, and the sum would have no bound."""
        if self.size == 1:
            return
        mine = hashlib.sha256(f"{streams} {len(indices)} ".encode() + np.ascontiguousarray(indices).tobytes())
        draws = self.bytes_of_all(mine.digest()[:_DRAW_BYTES])
        if len(set(draws)) > 1:
            raise InvalidArgumentError(
                "the processes drew different batches or stand at different steps; give all of them the source that "
                "peers.source() returns, and machines of one kind"
            )

    def _exchange(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """The one place where a process waits for others."""
        try:
            call(*arguments, group=self.group, **options)
        except RuntimeError as error:
            raise PeerLostError(
                f"process {self.rank} of {self.size} has lost another one ({_reason(error)}). What was recorded is not "
                "charged again: start all processes again with `inosgd resume RUN`, on any number of them"
            ) from error


ALONE = Peers()
"""A training in one process."""


class SharedBatch:
    """One process's share of a batch, and the way from the shares to the sum.

    Attributes:
        mine: The positions in the batch that this process computes.
        total: The sum over the whole batch, once it was computed.
    """

    total: torch.Tensor

    def __init__(self, peers: Peers, indices: IntArray, streams: str | None = None) -> None:
        self._belongs_to = indices % peers.size
        self.mine: IntArray = np.flatnonzero(self._belongs_to == peers.rank)
        self._peers, self._count, self._streams = peers, len(indices), streams
        self._part = torch.zeros(0, device="cpu")
        self._awaited: Literal["measured", "ready", "sum", "nothing"] = "measured"  # what the next exchange is

    def gather(self, measured: Measured) -> Measured:
        """What all processes measured, in the order of the batch; ``measured`` is about ``mine``."""
        _validate.same_length(losses=measured.losses, share=self.mine)
        if self._peers.size == 1:
            return measured
        together = np.empty((self._count, 2))
        by_rank = np.argsort(self._belongs_to, kind="stable")
        together[by_rank] = self._pairs_of_all(np.column_stack([measured.losses, measured.grad_norms]))
        return Measured(together[:, 0].copy(), together[:, 1].copy())

    @contextmanager
    def summing(self, part: torch.Tensor, drew: Callable[[], bool]) -> Iterator[str | None]:
        """The sum of the parts of all processes, in ``total`` after the block, in which the step is recorded.

        Args:
            part: The sum over the share of this process.
            drew: Says whether the model drew random numbers of its own, such as dropout masks.

        Yields:
            A digest of the random streams that the step used, for its record. Where a model drew random numbers, they
            depend on the number of processes, and so does the digest: a recorded step is computed again on another
            number of them only if that gives the same, up to rounding.

        Guarantee:
            The block runs in the first process when every process has its part, and before any has the sum. If it
            raises, no process gets the sum. In the others it runs afterwards, so that what they keep in memory follows.
        """
        if self._peers.size == 1:
            yield self._streams
            self.total = part
            return
        states = self._peers.check_all_ready(_READY_AND_DREW if drew() else _READY)
        self._part = part if self._count else part[:1].clone()  # a sum of nothing is known without sending it
        self._awaited = "sum"
        streams = self._streams_with_size() if _READY_AND_DREW in states else self._streams
        if self._peers.first:
            yield streams
            self.total = self._added(part)
        else:
            self.total = self._added(part)
            yield streams

    def _added(self, part: torch.Tensor) -> torch.Tensor:
        total = self._peers.added(self._part)
        self._awaited = "nothing"
        if not bool(torch.isfinite(total).all()):
            self._peers.raise_failure()
        return total if self._count else part

    def fail(self, error: Exception) -> None:
        """Take part in what the others still wait for, so that they learn that this process has failed."""
        if self._peers.size == 1:
            return
        with suppress(PeerLostError):
            if self._awaited == "measured":
                self._pairs_of_all(np.full((len(self.mine), 2), np.nan))
            if self._awaited == "ready":
                self._peers.tell_failure(error)
            if self._awaited == "sum":
                self._peers.added(torch.full_like(self._part, torch.nan))
                self._peers.give_reason(error)

    def _streams_with_size(self) -> str | None:
        digest = hashlib.sha256(f"{self._streams} on {self._peers.size} processes".encode())
        return None if self._streams is None else digest.hexdigest()

    def _pairs_of_all(self, pairs: FloatArray) -> FloatArray:
        """The rows of all processes, those of the first process first."""
        self._awaited = "ready"
        if self._count == 0:
            return pairs
        shares = np.bincount(self._belongs_to, minlength=self._peers.size)
        sent = np.full((int(shares.max()), 2), np.nan)
        sent[: len(pairs)] = pairs
        received = [each.numpy() for each in self._peers.gathered(torch.from_numpy(sent))]
        return np.concatenate([each[:share] for each, share in zip(received, shares, strict=True)])


@contextmanager
def connect(
    meeting: str = "env://", *, rank: int | None = None, size: int | None = None, timeout: float = TIMEOUT
) -> Iterator[Peers]:
    """The processes that were launched together, by ``torchrun`` say; `ALONE` if there is only this one.

    On the CPU they meet over gloo, on GPUs over nccl. Inside an existing torch process group, that one is used. At the
    end every process waits for the others, so that none leaves early.

    Args:
        meeting: Where they find each other, as torch's ``init_method``; by default what ``torchrun`` arranged.
        rank: Which process this is; None takes it from the environment (``RANK``).
        size: How many there are; None takes it from the environment (``WORLD_SIZE``).
        timeout: Seconds to wait for the others, in any exchange.
    """
    _validate.finite_positive(timeout=timeout)
    if dist.is_initialized():
        yield Peers(dist.get_rank(), dist.get_world_size(), dist.group.WORLD)
        return
    here, count = launched()
    here, count = here if rank is None else rank, count if size is None else size
    if count == 1:
        yield ALONE
        return
    _meet(meeting, here, count, timeout)
    try:
        peers = Peers(here, count, dist.group.WORLD)
        yield peers
        peers.check_all_ready()
    finally:
        dist.destroy_process_group()


def launched() -> tuple[int, int]:
    """Which process this is and how many were launched together, by the environment; (0, 1) if it does not say."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def _meet(meeting: str, rank: int, size: int, timeout: float) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    limit = datetime.timedelta(seconds=timeout)
    try:
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=size, timeout=limit)
    except RuntimeError as error:
        raise PeerLostError(
            f"process {rank} of {size} did not find the others within {timeout:g} s ({_reason(error)}); start all "
            "of them, with torchrun"
        ) from error


def _commitment(rank: int, contribution: bytes) -> bytes:
    return hashlib.sha256(b"inosgd commitment" + rank.to_bytes(8, "little") + contribution).digest()


def _digest(value: object) -> bytes:
    return hashlib.sha256(value if isinstance(value, bytes) else str(value).encode()).digest()


def _message(error: Exception | None) -> bytes:
    text = "" if error is None else f"{type(error).__name__}: {error}"
    return text.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\x00")


def _reason(error: RuntimeError) -> str:
    """What a backend says, without the place in its source and without its advice."""
    line = str(error).partition("\n")[0]
    return re.sub(r"^\[\S*\] ", "", line).partition(". ")[0][:200]
