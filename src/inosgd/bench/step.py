"""What one private step costs: time and memory as ratios to the plain step of the same model in the same run.

Each method takes turns with the plain step, so that whatever else the machine does meets both of them; its ratio
is taken within a turn, and the median over turns is reported.

Every method has a process of its own, in which nothing but the plain step has used memory before, and whose allocator
has its default settings until the method changes them, as the engine does (`inosgd.gradients.allocator`): what is
measured is what its users get, and the plain step meets the same settings.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from inosgd import _validate
from inosgd.bench.memory import peak_memory
from inosgd.bench.methods import (
    ADDITIONS,
    METHODS,
    Step,
    all_equal,
    available_methods,
    ordered,
    private,
    without_additions,
)
from inosgd.bench.models import ALL, MODELS
from inosgd.bench.new_process import in_new_process
from inosgd.errors import InosgdError
from inosgd.gradients import BookkeepingEngine
from inosgd.gradients.rules.chain_kernel import kernel

_FIRST_STEPS = 8
"""How many steps are taken before any is measured: the engine compares batches 1, 2, 4, 8, ... with their parts."""

ADDED_TO = ("mlp", "mnist", "cifar")
"""The models to whose steps additions are made."""

QUANTITIES = {
    "wall": "Wall time",
    "cpu": "CPU time",
    "first": "Wall time of the first step, checks of the model included",
    "memory": "Peak memory over the start",
}

Times = tuple[float, float]
"""Wall and CPU seconds of one turn."""


def bench_step(
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    repeats: int = 10,
    *,
    memory: bool = True,
    ino_over_idp: bool = True,
    additions: bool = True,
    notice: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure steps.

    Args:
        models: Names from `ALL`; None for `MODELS`, which need no other package.
        methods: Names from `METHODS`; None for all that are available. ``plain`` is always measured.
        repeats: How many turns every method takes with the plain step.
        memory: Whether to measure peak memory, each in a process of its own.
        ino_over_idp: Whether to compare the steps of INO-SGD and IDP-SGD on the CIFAR network at batch size 1024.
        additions: Whether to measure what `ADDITIONS` add to a step of the models in `ADDED_TO`, if they are measured.
        notice: Called with a sentence for each result as it comes.

    Returns:
        ``models[name][method]`` with the `QUANTITIES` as ratios to plain, or an ``error`` for a method that cannot
        train the model; ``plain`` in seconds and bytes; ``ino_over_idp``; ``additions[addition][name]`` as ratios of
        CPU time to the step without, one of which is the same code twice; and ``machine``.
    """
    _validate.whole(1, repeats=repeats)
    chosen = available_methods() if methods is None else list(methods)
    names = list(MODELS) if models is None else list(models)
    for argument, given, known in (("models", names, ALL), ("methods", chosen, METHODS)):
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            raise _validate.fail(argument, next(iter(unknown), given), f"give names out of {', '.join(known)}")
    result: dict[str, Any] = {"machine": _machine(), "repeats": repeats}
    result["models"] = {name: _bench_model(name, chosen, repeats, memory, notice) for name in names}
    result["ino_over_idp"] = _ino_over_idp(repeats) if ino_over_idp else None
    added_to = [name for name in ADDED_TO if name in names and additions]
    result["additions"] = {each: {name: _added(each, name, repeats) for name in added_to} for each in ADDITIONS}
    return result


def format_markdown(result: Mapping[str, Any]) -> str:
    """Tables of the result, one per quantity, with a row per method."""
    names = list(result["models"])
    methods = list(dict.fromkeys(method for entries in result["models"].values() for method in entries))
    machine = result["machine"]
    lines = [
        f"Ratios to the plain step of the same model in the same run: medians of {result['repeats']} turns on "
        f"{machine['threads']} threads, torch {machine['torch']}, "
        f"{'with' if machine['kernel'] else 'without'} the compiled kernel for small chains of linear layers.",
    ]
    for quantity, title in QUANTITIES.items():
        lines += ["", f"## {title}", "", "| method | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for method in methods:
            cells = [_cell(result["models"][name].get(method, {}), method, quantity) for name in names]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
    if result["ino_over_idp"] is not None:
        lines += ["", f"INO-SGD's step over IDP-SGD's, CIFAR network, batch 1024: {result['ino_over_idp']:.3f}"]
    added_to = list(next(iter(result["additions"].values())))
    if added_to:
        heading = f"| {' | '.join(['addition', *added_to])} |"
        lines += ["", "## CPU time with an addition over that without", "", heading, "|---" * (len(added_to) + 1) + "|"]
        for addition, ratios in result["additions"].items():
            lines.append(f"| {addition} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios.values()) + " |")
    return "\n".join(lines) + "\n"


def _cell(entry: Mapping[str, Any], method: str, quantity: str) -> str:
    value = entry.get(quantity)
    if value is None:
        return "-"
    if method == "plain":
        return f"{value / 2**20:.0f} MB" if quantity == "memory" else f"{value * 1000:.1f} ms"
    return f"{value:.2f}"


def _bench_model(
    name: str, methods: Sequence[str], repeats: int, memory: bool, notice: Callable[[str], None]
) -> dict[str, Any]:
    threads = torch.get_num_threads()
    bytes_of_plain = _memory(name, "plain") if memory else None
    entries: dict[str, Any] = {"plain": in_new_process(__name__, "time_plain", name, repeats, threads)}
    entries["plain"]["memory"] = bytes_of_plain
    for method in [method for method in methods if method != "plain"]:
        entries[method] = in_new_process(__name__, "compare_to_plain", name, method, repeats, threads)
        if "error" not in entries[method]:
            used = _memory(name, method) if memory else None
            entries[method]["memory"] = used / bytes_of_plain if used and bytes_of_plain else None
        notice(f"{name}, {method}: {_measured(entries[method])}")
    return entries


def _measured(entry: Mapping[str, Any]) -> str:
    """The result of one method in words."""
    if "error" in entry:
        return str(entry["error"])
    memory = "" if entry["memory"] is None else f", memory {entry['memory']:.2f}"
    return f"wall {entry['wall']:.2f}, CPU {entry['cpu']:.2f}{memory}"


def time_plain(name: str, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds of the plain step in this process, which should be a new one."""
    torch.set_num_threads(threads)
    step = METHODS["plain"](*ALL[name].make())
    wall, cpu = np.median([_time(step, ALL[name].steps) for _ in range(repeats)], axis=0)
    return {"wall": float(wall), "cpu": float(cpu)}


def compare_to_plain(name: str, method: str, repeats: int, threads: int) -> dict[str, Any]:
    """The method's ratios to plain in this process, which should be a new one.

    What a method raises on a model that it cannot train is its result.
    """
    torch.set_num_threads(threads)
    bench = ALL[name]
    base = METHODS["plain"](*bench.make())
    try:
        step = METHODS[method](*bench.make())
        start = time.perf_counter()
        step()
        first = (time.perf_counter() - start) / _time(base, bench.steps)[0]
        for _ in range(_FIRST_STEPS - 1):
            step()
        turns = [_ratios(_time(base, bench.steps), _time(step, bench.steps)) for _ in range(repeats)]
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        return {"error": f"{type(error).__name__}: {first_line}"}
    wall, cpu = np.median(turns, axis=0)
    return {"wall": float(wall), "cpu": float(cpu), "first": first}


def _ratios(base: Times, other: Times) -> Times:
    return other[0] / base[0], other[1] / base[1]


def _time(step: Step, steps: int) -> Times:
    """The median step's seconds, on the wall and of the processor, after one step that is not measured.

    That one gets the caches and the allocator to where they are in the middle of training. A median, because the engine
    compares values at batches 1, 2, 4, 8, ...: a turn that has one of these is not longer than one that has none.
    """
    step()
    times = []
    for _ in range(steps):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = np.median(times, axis=0)
    return float(wall), float(cpu)


def _memory(name: str, method: str) -> int | None:
    try:
        return peak_memory(name, method)
    except InosgdError:
        return None


def _ino_over_idp(repeats: int) -> float:
    """The median ratio of the two methods' steps."""
    model, inputs, targets = MODELS["cifar"].make(batch_size=1024)
    steps = [private(BookkeepingEngine(), model, inputs, targets, weights) for weights in (ordered, all_equal)]
    return _ratio_in_turns(steps[0], steps[1], repeats)


def _added(addition: str, name: str, repeats: int) -> float:
    """The median ratio of the CPU times of a step with an addition and the same without."""
    bench = MODELS[name]
    steps = ADDITIONS[addition](*bench.make()), without_additions(*bench.make())
    for step in steps * _FIRST_STEPS:
        step()
    return _ratio_in_turns(*steps, repeats, lambda step: _time(step, bench.steps)[1])


def _ratio_in_turns(
    first: Step, second: Step, repeats: int, seconds: Callable[[Step], float] = lambda step: _time(step, 1)[0]
) -> float:
    """The median ratio of the times of two steps, which take turns in changing order."""
    first()
    steps, ratios = (first, second), []
    for turn in range(repeats):
        times = {index: seconds(steps[index]) for index in ((0, 1) if turn % 2 else (1, 0))}
        ratios.append(times[0] / times[1])
    return float(np.median(ratios))


def _machine() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "processor": platform.machine(),
        "kernel": kernel(torch.float32) is not None,
    }
