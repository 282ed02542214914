"""Schedules: learning rates by the number of steps, by name.

    schedule = scheduled(optimizer, "cosine", plan.steps, warmup=10)
    state = TrainingState.start(trainer, model, optimizer, source, also={"schedule": schedule})

A schedule that is named ``schedule`` in ``also`` moves on with every step, and checkpoints keep it.

| name       | factor of the learning rate after a share s of the steps |
| ---------- | -------------------------------------------------------- |
| `constant` | 1                                                        |
| `linear`   | 1 - s                                                    |
| `cosine`   | (1 + cos(pi s)) / 2                                      |

Guarantee: a factor depends on the number of steps alone, so that a schedule costs no privacy. One by training losses
would be a release that no ledger has.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LambdaLR

from inosgd import _validate

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: (1.0 + math.cos(math.pi * share)) / 2,
}


def scheduled(optimizer: torch.optim.Optimizer, name: str, steps: int, *, warmup: int = 0) -> LambdaLR:
    """The schedule called ``name`` for ``steps`` steps, of which the first ``warmup`` rise to the learning rate.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    >>> schedule = scheduled(optimizer, "linear", 4)
    >>> for _ in range(3):
    ...     optimizer.step()
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """
    _validate.one_of(SCHEDULES, schedule=name)
    _validate.whole(1, steps=steps)
    _validate.whole(0, warmup=warmup)
    if not warmup < steps:
        raise _validate.fail("warmup", warmup, f"give fewer than the {steps} steps")
    return LambdaLR(optimizer, lambda step: factor(name, step, steps, warmup))


def factor(name: str, step: int, steps: int, warmup: int = 0) -> float:
    """The factor of the learning rate in ``step``, counted from 0.

    >>> [factor("cosine", step, 4) for step in (0, 2)], [factor("constant", step, 4, 2) for step in range(3)]
    ([1.0, 0.5], [0.5, 1.0, 1.0])
    """
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[name](min(1.0, (step - warmup) / (steps - warmup)))
