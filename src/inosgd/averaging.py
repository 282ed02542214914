"""Averaging of iterates: the model that a training results in is an average of the parameters after its steps.

    average = RunningAverage(Averaging("exponential", decay=0.9), plan.steps)
    state = TrainingState.start(trainer, model, optimizer, source, also={"average": average})
    fit(trainer, state)
    with state.result() as averaged:
        ...                                     # here the model has the averaged parameters

Noise that a single step adds is averaged out; where training has not arrived yet, an average lags behind.

Guarantee:
    An average is a function of the parameters after each step, which the guarantee covers all together, and of public
    numbers. So it costs no privacy. This holds for steps that stand: `inosgd.runs` brings the average back with the
    checkpoint when it rolls back, so that it holds nothing of steps that were given up. Whether the average or the last
    iterate is the result is fixed by the configuration before training; choosing by private held-out examples is not
    free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.gradients import trainable_parameters

KINDS = ("exponential", "tail")
DEFAULT_DECAY, DEFAULT_SHARE = 0.9, 0.5


@dataclass(frozen=True)
class Averaging:
    """Which iterates are averaged, and by which weights.

    With w_t the parameters after step t of T:

    - ``exponential``: the mean of w_1, ..., w_t with weights proportional to decay^(t - s), which sum to 1 (the usual
      recursion with its bias corrected);
    - ``tail``: the plain mean of w_s for s > (1 - share) T. Before that the average is the last iterate.

    Attributes:
        kind: One of `KINDS`.
        decay: Of ``exponential``, 0.9 if not given. About 1 / (1 - decay) iterates count.
        share: Of ``tail``, 0.5 if not given. 1 averages all iterates.
    """

    kind: str
    decay: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        _validate.one_of(KINDS, kind=self.kind)
        used, unused = ("decay", "share") if self.kind == "exponential" else ("share", "decay")
        if getattr(self, unused) is not None:
            raise _validate.fail(
                unused, getattr(self, unused), f"averaging by {self.kind!r} has a {used}; leave it out"
            )
        if getattr(self, used) is None:
            object.__setattr__(self, used, DEFAULT_DECAY if used == "decay" else DEFAULT_SHARE)
        value = getattr(self, used)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _validate.fail(used, value, "give a number")
        if not (0 <= value < 1 if used == "decay" else 0 < value <= 1):
            limits = "of at least 0 and below 1" if used == "decay" else "greater than 0 and at most 1"
            raise _validate.fail(used, value, f"give a number {limits}")

    def begins_after(self, steps: int) -> int:
        """The last step out of ``steps`` whose iterate does not count."""
        return 0 if self.share is None else steps - max(1, round(self.share * steps))

    def weight(self, count: int) -> float:
        """The share that the newest of ``count`` iterates has in their average."""
        return 1 / count if self.decay is None else (1 - self.decay) / (1 - self.decay**count)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"exponential, decay {self.decay:g}" if self.kind == "exponential" else f"tail, share {self.share:g}"


class RunningAverage:
    """The average of a training's iterates so far, in float64.

    It is kept in checkpoints with everything else that `TrainingState.also` names. ``steps`` are those of the plan: if
    a new plan has another number, the tail begins where it says, iterates that are no longer in it are dropped, and
    earlier ones are not brought back.
    """

    def __init__(self, averaging: Averaging, steps: int) -> None:
        _validate.whole(1, steps=steps)
        self.averaging, self.steps = averaging, steps
        self.seen, self.count = 0, 0
        self._mean: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the parameters after one more step."""
        self.seen += 1
        if self.seen <= self.averaging.begins_after(self.steps):
            self.count, self._mean = 0, {}
            return
        self.count += 1
        parameters = trainable_parameters(model)
        if self.count == 1:
            self._mean = {
                name: parameter.detach().to(torch.float64, copy=True) for name, parameter in parameters.items()
            }
            return
        weight, means = self.averaging.weight(self.count), list(self._mean.values())
        torch._foreach_mul_(means, 1 - weight)
        torch._foreach_add_(means, [parameter.detach() for parameter in parameters.values()], alpha=weight)

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[nn.Module]:
        """Inside, ``model`` has the averaged parameters; afterwards its own, to the bit. Buffers stay as they are."""
        parameters = trainable_parameters(model) if self.count else {}
        own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        try:
            _put(parameters, self._mean)
            yield model
        finally:
            _put(parameters, own)

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes with the steps, and what it is an average by."""
        mean = {name: value.clone() for name, value in self._mean.items()}
        return {"averaging": self.averaging.to_json(), "seen": self.seen, "count": self.count, "mean": mean}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            InvalidArgumentError: If it is that of another averaging; nothing has then changed.
        """
        if saved["averaging"] != self.averaging.to_json():
            raise InvalidArgumentError(
                f"averaging: the run was begun with {saved['averaging']}, and this is {self.averaging.to_json()}; "
                "resume with the same"
            )
        self.seen, self.count = int(saved["seen"]), int(saved["count"])
        self._mean = {name: value.clone() for name, value in saved["mean"].items()}


@torch.no_grad()
def _put(parameters: Mapping[str, nn.Parameter], values: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])
