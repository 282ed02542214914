"""A run that is interrupted and goes on: it ends with the same model, and no step is spent twice.

python examples/interrupted.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

from inosgd import INO_SGD, Owners, Plan, PlanConfig, RunFolder, SeededSource, Trainer, make_plan, supervised
from inosgd.runs.resuming import begin, resume, train_durably

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(200, 6, generator=GENERATOR)
TARGETS = (INPUTS[:, 0] > 0).long()
OWNERS = Owners.from_labels(["north"] * 80 + ["south"] * 120, {"north": 1.0, "south": 8.0}, delta=1e-4)


def parts(plan: Plan) -> tuple[Trainer, torch.nn.Module, torch.optim.Optimizer]:
    """Trainer, model and optimizer, as every new process builds them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    trainer = Trainer(plan, OWNERS, (INPUTS, TARGETS), supervised(F.cross_entropy), INO_SGD)
    return trainer, model, torch.optim.SGD(model.parameters(), lr=0.2)


def main(folder: Path | None = None) -> tuple[float, float]:
    """Train at once and in two parts; how far apart the models are, and the largest epsilon that was spent.

    Seeded, so that the two can be compared: use `inosgd.SecureSource` for a model that is published.
    """
    place = folder or Path(tempfile.mkdtemp())
    config = PlanConfig(steps=12, variant="sample", expected_batch_size=20, clipping_threshold=1.0)
    plan = make_plan(OWNERS.table, config)
    models = []
    for name, interrupted_at in (("at-once", 12), ("in-two-parts", 7)):
        run = RunFolder.create(place / name, {"of": "an example"}, plan)
        with run.lock() as locked:
            trainer, model, optimizer = parts(plan)
            state = begin(locked, trainer, model, optimizer, SeededSource(1))
            train_durably(locked, trainer, state, every=5, steps=interrupted_at)
            state.ledger.close()
        if interrupted_at < plan.steps:  # a new process would begin here
            with RunFolder.open(place / name).lock() as locked:
                trainer, model, optimizer = parts(plan)
                state = resume(locked, trainer, model, optimizer, SeededSource(1)).state
                train_durably(locked, trainer, state, every=5)
                state.ledger.close()
        models.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    ledger = RunFolder.open(place / "in-two-parts").read_ledger()
    ledger.show()
    return float((models[0] - models[1]).abs().max()), float(ledger.spent().max())


if __name__ == "__main__":
    print(f"the models differ by {main()[0]:g}")
