"""Full precision: what a process may have switched to less, for speed, does not hold inside an engine.

That an example's clipped gradient is no longer than its threshold is shown from the roundings of the model's own type.
Settings outside a model can make them larger:

| set from outside | inside an engine |
| --- | --- |
| float32 multiplied in bfloat16 or TF32: ``torch.set_float32_matmul_precision``, ``torch.backends`` | off |
| convolutions by NNPACK, where oneDNN is off: 16 times the error, in batches of 16 or more only | off |
| ``torch.autocast`` | off |
| bfloat16 as oneDNN's own default, ``ONEDNN_DEFAULT_FPMATH_MODE`` | refused: no call changes it |
| numbers below 1.2e-38 taken for 0, ``torch.set_flush_denormal`` | refused: threads keep it that started under it |
| roundings not to the nearest, ``fesetround`` | refused |

Some blocks of torch's change, around a step, what gradients are computed from: inference mode, hooks on saved tensors,
transforms of ``torch.func``. A model was checked without them, so they are refused as well.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from inosgd.errors import InosgdError, InvalidArgumentError

TESTED_DEVICES = ("cpu",)
"""The types of devices that the tests run on."""

_SMALLEST, _HALF_UNIT = sys.float_info.min, sys.float_info.epsilon / 2
_PER_THREAD = 1 << 15
"""So many elements of a tensor are the least that torch gives a thread."""


@dataclass(frozen=True, eq=False)
class Switch:
    """A setting of the whole process that allows less precision.

    Attributes:
        name: What to call it in messages.
        read: Its value.
        write: Sets it.
        full: The values that allow nothing less than full precision; the first is the one to set.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    full: tuple[Any, ...]


def _products(backend: str, operation: str) -> Switch:
    """How a backend multiplies numbers of float32; without a value of its own it follows more general settings."""
    read = partial(torch._C._get_fp32_precision_getter, backend, operation)

    def write(value: str) -> None:
        torch._C._set_fp32_precision_setter(backend, operation, "none")
        if read() != value:  # else it follows them again
            torch._C._set_fp32_precision_setter(backend, operation, value)

    return Switch(f"torch.backends fp32_precision ({backend}, {operation})", read, write, ("ieee", "none"))


ON_PROCESSORS = (
    *(_products("mkldnn", operation) for operation in ("matmul", "conv", "rnn")),
    Switch("torch.backends.nnpack", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, (False,)),
)
"""What decides for tensors on the processor."""

ON_ACCELERATORS = (
    *ON_PROCESSORS,
    *(_products("cuda", operation) for operation in ("matmul", "conv", "rnn")),
    Switch(
        "torch.set_float32_matmul_precision",
        torch._C._get_float32_matmul_precision,
        torch._C._set_float32_matmul_precision,
        ("highest",),
    ),
)
"""The same for everything else. The older setting comes last: torch refuses to read it if newer ones contradict it."""


@dataclass
class _Held:
    """Switches that are off as long as anyone needs them to be; the settings are shared by all threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    before: dict[Switch, Any] = field(default_factory=dict)

    def take(self, switches: Sequence[Switch]) -> None:
        with self.lock:
            self.users += 1
            for switch in switches:
                value = switch.read()
                if value not in switch.full:
                    self.before.setdefault(switch, value)
                    switch.write(switch.full[0])

    def give_back(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for switch, value in reversed(self.before.items()):
                    switch.write(value)
                self.before.clear()


_held = _Held()


@contextmanager
def full_precision(device: torch.device, *, allow_untested_device: str | None = None) -> Iterator[None]:
    """Inside, arithmetic on ``device`` is that of its types; afterwards all settings are what they were.

    Args:
        device: Where the model is.
        allow_untested_device: The type of a device that no test of this library has run on, to use it all the same.

    Guarantee:
        On a processor, float32 and float64 operations of torch in this thread round as IEEE 754 says, with gradual
        underflow, as far as settings decide it: what an engine computes does not depend on them. The settings are
        shared by all threads of a process. They are off until the last thread has left its block, and a block in which
        another thread, or the model, has set one ends in an error. For other devices torch's settings are off as well,
        and nothing is promised: no test has seen what they compute.

    Raises:
        InvalidArgumentError: The device has not been tested and is not allowed by name.
        InosgdError: Something reduces precision that cannot be switched off from here, or was set inside the block.
    """
    kind = device.type
    _check_device(kind, allow_untested_device)
    _check_environment()
    _check_blocks()
    _check_thread()
    switches = ON_PROCESSORS if kind == "cpu" else ON_ACCELERATORS
    try:
        _held.take(switches)
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                yield
        else:
            yield
        _check_thread()
        _check_off(switches)
    finally:
        _held.give_back()


def _check_device(kind: str, allowed: str | None) -> None:
    if kind not in TESTED_DEVICES and kind != allowed:
        raise InvalidArgumentError(
            f"model: it is on a device of type {kind!r}, on which no test of inosgd has run, so that its guarantee is "
            "not known to hold there; move it to the processor (model.cpu()), or give the engine "
            f"allow_untested_device={kind!r} to use it all the same"
        )


@cache
def _check_environment() -> None:
    """Refuse oneDNN's own default of less precision, which it takes from the environment once."""
    for name in ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"):
        value = os.environ.get(name, "STRICT")
        if value.upper() != "STRICT":
            raise InosgdError(
                f"the environment variable {name} is {value!r}, which lets oneDNN compute float32 with fewer digits "
                "than clipping rests on; start the program without it"
            )


_BLOCKS: dict[str, Callable[[], Any]] = {
    "torch.inference_mode, where nothing has a gradient": torch.is_inference_mode_enabled,
    "torch.autograd.graph.saved_tensors_hooks, which change what gradients are computed from": partial(
        torch._C._autograd._top_saved_tensors_default_hooks, True
    ),
    "a transform of torch.func, where tensors are not what they seem": torch._C._functorch.maybe_current_level,
}
"""What a step must not be inside of, and what says, by neither False nor None, whether it is."""


def _check_blocks() -> None:
    for block, inside in _BLOCKS.items():
        if inside() not in (False, None):
            raise InosgdError(f"gradients are asked for inside {block}; take the step outside of it")


class _Tried(threading.local):
    """The number of threads that this thread's work was last shared by when they were tried."""

    threads = 0


_tried = _Tried()


def _check_thread() -> None:
    """Refuse arithmetic that is not IEEE's default, in this thread; and flushing to 0 in those that share its work."""
    threads = torch.get_num_threads()
    if 1.0 + _HALF_UNIT != 1.0 or 1.0 + 1.5 * _HALF_UNIT == 1.0:
        raise InosgdError(
            "this thread does not round to the nearest number (fesetround), so that sums err by more than is allowed "
            "for; set the rounding back to FE_TONEAREST"
        )
    if _SMALLEST * 0.5 * 2.0 != _SMALLEST or (threads != _tried.threads and _flushed_among(threads)):
        raise InosgdError(
            "a thread of this process takes numbers below 1e-38 for 0 (torch.set_flush_denormal(True), or a library "
            "built with -ffast-math), so that norms can come out too small; call torch.set_flush_denormal(False) "
            "before torch computes anything, since threads keep what they were started with"
        )
    _tried.threads = threads


def _flushed_among(threads: int) -> bool:
    """Whether one of the threads that share this one's work does it; they do so for life, or not at all."""
    smallest = torch.full((threads * _PER_THREAD,), torch.finfo(torch.float32).tiny, dtype=torch.float32, device="cpu")
    return not torch.equal(smallest.mul(0.5).mul(2.0), smallest)


def _check_off(switches: Sequence[Switch]) -> None:
    for switch in switches:
        if switch.read() not in switch.full:
            raise InosgdError(
                f"{switch.name} was set to {switch.read()!r} while gradients were computed; leave it alone in the "
                "model, in its losses and in other threads until the step is over"
            )
