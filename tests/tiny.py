"""A training so small that a test can run it many times: two owners, forty examples, a dozen steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from inosgd import INO_SGD, Budget, Owners, OwnerTable, Plan, PlanConfig, Trainer, make_plan, supervised
from inosgd.runs.folder import RunFolder

STEPS = 12
BUDGETS = {"strict": Budget(epsilon=1.0, delta=1e-5), "liberal": Budget(epsilon=8.0, delta=1e-5)}
SIZES = {"strict": 15, "liberal": 25}
LOSSES = supervised(F.cross_entropy)


def owners_of(table: OwnerTable) -> Owners:
    """As many examples for each owner as the table says."""
    labels = [name for name, _, size in table for _ in range(size)]
    return Owners.from_labels(labels, {name: budget for name, budget, _ in table})


def first_owners() -> Owners:
    return Owners.from_labels([name for name, size in SIZES.items() for _ in range(size)], BUDGETS)


def first_plan(**asked) -> Plan:
    usual = {"steps": STEPS, "variant": "sample", "expected_batch_size": 10, "clipping_threshold": 0.5}
    return make_plan(first_owners().table, PlanConfig(**(usual | asked)), verify=False)


PLAN = first_plan()


def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def trainer_for(plan: Plan) -> Trainer:
    owners = owners_of(plan.table)
    return Trainer(plan, owners, examples(len(owners)), LOSSES, INO_SGD)


def model(width: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 2))


def parts(plan: Plan, build=torch.optim.SGD, **settings):
    """Trainer, model and optimizer as a new process would build them."""
    network = model()
    return trainer_for(plan), network, build(network.parameters(), lr=0.1, **settings)


def new_run(folder, plan: Plan = PLAN) -> RunFolder:
    return RunFolder.create(folder / "run", {"of": "a test"}, plan)


def bits(network: nn.Module) -> bytes:
    return nn.utils.parameters_to_vector(network.parameters()).detach().numpy().tobytes()
