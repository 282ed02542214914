"""A data set that is slow to read: workers read its examples, and a transform scales a batch at once.

python examples/slow_images.py
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from inosgd import INO_SGD, Owners, PlanConfig, SecureSource, Trainer, TrainingState, fit, make_plan, supervised
from inosgd.examples import DatasetStore, TransformedStore
from inosgd.integrations.notebooks import shown_progress


class Photographs(Dataset):
    """Made-up photographs of 8 x 8 bytes, each of which takes a millisecond to read."""

    def __init__(self, count: int) -> None:
        self.pixels = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8)
        self.labels = (self.pixels.float().mean((1, 2, 3)) > 127).long()

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One of them."""
        time.sleep(0.001)
        return self.pixels[index], self.labels[index]


def scaled(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels from -1 to 1; a transform must treat each example by itself, and is refused if it does not."""
    pixels, labels = batch
    return pixels.float() / 127.5 - 1, labels


def main(workers: int = 4, steps: int = 20) -> float:
    """Train; the seconds that it took."""
    photographs = Photographs(400)
    owners = Owners.from_labels(["studio"] * 100 + ["archive"] * 300, {"studio": 1.0, "archive": 8.0}, delta=1e-4)
    config = PlanConfig(steps=steps, variant="sample", expected_batch_size=50, clipping_threshold=1.0)
    plan = make_plan(owners.table, config)
    examples = TransformedStore(DatasetStore(photographs, workers=workers), scaled)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    trainer = Trainer(plan, owners, examples, supervised(F.cross_entropy), INO_SGD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = TrainingState.start(trainer, model, optimizer, SecureSource())
    began = time.monotonic()
    fit(trainer, state, callbacks=[shown_progress(trainer)])
    return time.monotonic() - began


if __name__ == "__main__":
    print(f"with 4 workers: {main(4):.1f} s; alone: {main(0):.1f} s")
