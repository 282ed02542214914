"""A training loop of one's own: budgets of two hospitals, a plan, a step at a time, a schedule and a public log.

python examples/own_loop.py
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

from inosgd import (
    INO_SGD_FAIR,
    Budget,
    Owners,
    PlanConfig,
    SecureSource,
    Trainer,
    TrainingState,
    make_plan,
    supervised,
    train_step,
)
from inosgd.integrations.logging import log_public
from inosgd.plan_config import steps_of_epochs
from inosgd.schedules import scheduled


def main(epochs: float = 2.0) -> dict[str, float]:
    """Train on made-up visits; the epsilon that every hospital has spent."""
    inputs = torch.randn(1000, 20)
    targets = (inputs[:, 0] + 0.3 * torch.randn(1000) > 0).long()
    budgets = {"outbreak": Budget(epsilon=0.5, delta=1e-5), "city": Budget(epsilon=5.0, delta=1e-5)}
    owners = Owners.from_labels(["outbreak"] * 400 + ["city"] * 600, budgets)
    steps = steps_of_epochs(epochs, len(owners), 64)
    config = PlanConfig(steps=steps, variant="fair", expected_batch_size=64, clipping_threshold=1.0)
    plan = make_plan(owners.table, config)
    plan.show()

    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = Trainer(plan, owners, (inputs, targets), supervised(F.cross_entropy), INO_SGD_FAIR)
    also = {"schedule": scheduled(optimizer, "cosine", plan.steps)}
    state = TrainingState.start(trainer, model, optimizer, SecureSource(), also=also)
    log = log_public(sys.stdout, steps=max(plan.steps // 4, 1))  # public numbers alone: no loss, no batch size
    for _ in range(plan.steps):
        log(state, train_step(trainer, state))
    state.ledger.show()
    return dict(zip(owners.table.names, map(float, state.ledger.spent()), strict=True))


if __name__ == "__main__":
    main()
