"""What a step costs on several processes, where its time goes, and what that makes of many machines.

Every number of processes is measured on the same global batch, each process in a Python of its own and on one thread,
as ``torchrun`` sets it. An exchange takes as long as its last process needs to arrive and the data to travel.
What the last to arrive spends in it is counted as communication; what the others spend more, as waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from inosgd import _validate
from inosgd.bench.models import MODELS
from inosgd.distributed import ALONE, Peers, connect
from inosgd.errors import InosgdError
from inosgd.gradients import supervised
from inosgd.importance import BetaTail, Tail, importance_weights
from inosgd.method import INO_SGD
from inosgd.owners import Budget, Owners
from inosgd.plan import Phase, Plan, Terms
from inosgd.randomness import SeededSource
from inosgd.training import Trainer, TrainingState, train_step

SIZES = (1, 2, 4)
NETWORKS = ("mnist", "cifar")
MACHINES = (8, 64, 512)
LINK = (100e-6, 1.25e9)
"""What a projection takes for a usual network between machines: 100 microseconds per message, 10 Gbit/s."""

_PROBE_BYTES = 1 << 24
_WARM_UP = 2


@dataclass(frozen=True)
class TimedPeers(Peers):
    """Peers who note how long each exchange took and how many bytes this process handed in."""

    seconds: list[float] = field(default_factory=list)
    handed: list[int] = field(default_factory=list)

    def _exchange(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        start = time.perf_counter()
        super()._exchange(call, *arguments, **options)
        self.seconds.append(time.perf_counter() - start)
        self.handed.append(int(next(each.nbytes for each in reversed(arguments) if isinstance(each, torch.Tensor))))


def bench_distributed(
    networks: Sequence[str] = NETWORKS, sizes: Sequence[int] = SIZES, steps: int = 5
) -> dict[str, Any]:
    """Measure steps of INO-SGD on several processes of this machine.

    Returns:
        ``networks[name]`` with one row per number of processes: seconds of a ``step``, of them in ``communication`` and
        ``waiting``, and ``bytes`` that one process hands to exchanges; ``link``, the seconds per message and the bytes
        per second between two processes here; ``projection``; and ``cores``.
    """
    _validate.whole(1, steps=steps)
    for name in networks:
        if name not in MODELS:
            raise _validate.fail("networks", name, f"give names out of {', '.join(MODELS)}")
    rows = {name: [_launched(name, size, steps) for size in sizes] for name in networks}
    links = [row["link"] for each in rows.values() for row in each if row["processes"] == 2]
    link = tuple(np.median(np.array(links), axis=0).tolist()) if links else None
    return {
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "steps": steps,
        "networks": rows,
        "link": link,
        "projection": {
            name: [project(each[0], machines, LINK) for machines in MACHINES] for name, each in rows.items()
        },
    }


def project(alone: Mapping[str, Any], machines: int, link: tuple[float, float]) -> dict[str, float]:
    """What a step would cost on so many machines, each with the batch that one process was measured with.

    gloo's exchanges go round a ring. With W machines, a seconds per message, b bytes per second, n examples per machine
    and a gradient of G bytes:

        three gathers    3 (W - 1) a + (W - 1) 16 n / b
        one sum          2 (W - 1) a + 2 (W - 1) / W  G / b

    Computing takes as long as alone, noise included; to it comes the order of the whole batch of W n examples, which is
    measured here. Nothing is overlapped, and machines are taken to be equally fast.
    """
    latency, bandwidth = link
    others = machines - 1
    examples, gradient = alone["batch"], alone["gradient"]
    gathers = 3 * others * latency + others * 16 * examples / bandwidth
    total = 2 * others * latency + 2 * others / machines * gradient / bandwidth
    ordering = _seconds_of_order(round(machines * examples))
    step = alone["step"] + ordering + gathers + total
    return {
        "machines": machines,
        "batch": machines * examples,
        "step": step,
        "communication": gathers + total,
        "order": ordering,
        "efficiency": alone["step"] / step,
    }


def format_markdown(result: Mapping[str, Any]) -> str:
    """The measured table and the projection."""
    lines = [
        f"`inosgd bench distributed`: INO-SGD, medians of {result['steps']} steps on {result['cores']} cores, torch "
        f"{result['torch']}, gloo, one thread per process. The batch is the same for any number of processes.",
        "",
        "| network | processes | step, ms | communication | waiting for others | bytes per process |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in result["networks"].items():
        for row in rows:
            share, waiting = (f"{100 * row[key] / row['step']:.1f} %" for key in ("communication", "waiting"))
            if row["processes"] == 1:
                share = waiting = "-"
            lines.append(
                f"| {name} | {row['processes']} | {1000 * row['step']:.1f} | {share} | {waiting} | {row['bytes']:,} |"
            )
    if result["link"] is not None:
        latency, bandwidth = result["link"]
        lines += ["", f"Between two processes here: {1e6 * latency:.0f} µs per message, {bandwidth / 1e9:.2f} GB/s."]
    return "\n".join([*lines, "", *_projected(result)]) + "\n"


def _projected(result: Mapping[str, Any]) -> list[str]:
    lines = [
        "**Projection, not measured**: every machine with the batch above, gloo's rings over a network of "
        f"{1e6 * LINK[0]:.0f} µs per message and {8 * LINK[1] / 1e9:.0f} Gbit/s, nothing overlapped. Efficiency is the "
        "step of one machine over the step of many.",
        "",
        "| network | machines | examples per step | step, ms | communication | order | efficiency |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in result["projection"].items():
        for row in rows:
            share, order = (f"{100 * row[key] / row['step']:.1f} %" for key in ("communication", "order"))
            lines.append(
                f"| {name} | {row['machines']} | {row['batch']:,.0f} | {1000 * row['step']:.0f} | {share} | {order} | "
                f"{100 * row['efficiency']:.0f} % |"
            )
    return lines


def measure(name: str, meeting: str, rank: int, size: int, steps: int) -> dict[str, Any] | None:
    """The row of one process; None in all but the first."""
    torch.set_num_threads(1)
    with connect(f"file://{meeting}", rank=rank, size=size) as plain:
        peers = plain if plain is ALONE else TimedPeers(plain.rank, plain.size, plain.group)
        trainer, state = _training(name, peers)
        for _ in range(_WARM_UP):
            train_step(trainer, state)
        times, exchanged, handed = [], [], []
        for _ in range(steps):
            first = len(peers.seconds) if isinstance(peers, TimedPeers) else 0
            start = time.perf_counter()
            train_step(trainer, state)
            times.append(time.perf_counter() - start)
            if isinstance(peers, TimedPeers):
                exchanged.append(peers.seconds[first:])
                handed.append(sum(peers.handed[first:]))
        communication, waiting = _split(plain, np.array(exchanged))
        row = {
            "processes": size,
            "step": float(np.median(times)),
            "communication": communication,
            "waiting": waiting,
            "bytes": int(np.median(handed)) if handed else 0,
            "batch": trainer.plan.at(0).expected_batch_size,
            "gradient": sum(8 * each.numel() for each in state.model.parameters()),  # sums are float64
            "link": _link(plain),
        }
        return row if plain.first else None


def _split(peers: Peers, exchanged: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Median seconds of a step in communication, and in waiting on average over the processes."""
    if peers.size == 1:
        return 0.0, 0.0
    everyone = np.stack([each.numpy() for each in peers.gathered(torch.from_numpy(exchanged))])
    least = everyone.min(0).sum(-1)
    return float(np.median(least)), float(np.median(everyone.sum(-1).mean(0) - least))


def _link(peers: Peers) -> tuple[float, float] | None:
    """Seconds per message and bytes per second, if there are two processes."""
    if peers.size != 2:
        return None
    small = _median_seconds(lambda: peers.bytes_of_all(b"x"), 50)
    value = torch.zeros(_PROBE_BYTES, dtype=torch.uint8)
    return small, _PROBE_BYTES / _median_seconds(lambda: peers.added(value), 5)


def _median_seconds(action: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _training(name: str, peers: Peers) -> tuple[Trainer, TrainingState]:
    """A training whose batches are a quarter of its data; nothing is kept within a budget."""
    bench = MODELS[name]
    model, inputs, targets = bench.make(batch_size=4 * bench.batch_size)
    owners = Owners.from_labels(["strict", "lenient"] * (len(inputs) // 2), dict.fromkeys(("strict", "lenient"), _ANY))
    terms = Terms.for_owners(owners.table, np.full(2, 0.25), np.array([0.5, 1.0]), 50.0)
    plan = Plan(owners.table, (Phase(10**6, terms),), "rdp", owners.table.epsilons)
    trainer = Trainer(plan, owners, (inputs, targets), supervised(F.cross_entropy), INO_SGD, peers=peers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return trainer, TrainingState.start(trainer, model, optimizer, peers.source(0))


_ANY = Budget(epsilon=1e9, delta=1e-5)


def _seconds_of_order(examples: int) -> float:
    """Order and weights of so many examples."""
    losses = SeededSource(0).words(examples).astype(np.float64)
    thresholds, tail = np.ones(examples), Tail(BetaTail(), examples / 2)
    ids = np.arange(examples)
    return _median_seconds(lambda: importance_weights(tail, thresholds, np.lexsort((ids, -losses))), 3)


def _launched(name: str, size: int, steps: int) -> dict[str, Any]:
    """The row that the first of ``size`` new processes reports."""
    program = (
        "import json, sys; from inosgd.bench.distributed import measure; name, meeting, *numbers = sys.argv[1:]; "
        "print(json.dumps(measure(name, meeting, *map(int, numbers))))"
    )
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [sys.executable, "-c", program, name, str(Path(folder) / "meeting"), str(rank), str(size), str(steps)]
            for rank in range(size)
        ]
        pipe = subprocess.PIPE
        running = [subprocess.Popen(each, stdout=pipe, stderr=pipe, text=True) for each in commands]  # noqa: S603
        answers = [process.communicate() for process in running]
    for process, (_, problem) in zip(running, answers, strict=True):
        if process.returncode != 0:
            raise InosgdError(f"{name} on {size} processes: {problem.strip().splitlines()[-1]}")
    row: dict[str, Any] = json.loads(answers[0][0])
    return row
