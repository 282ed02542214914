"""Yardstick: what the same model reaches without privacy. It is NOT private.

It is trained on the same examples without clipping, noise or a ledger, and judged by the same held-out examples. Its
score says how much of what is missing is the price of privacy. It may tell about single training examples, and no
budget accounts for that: it is for the eyes of the holder of the data, and is never part of a saved model.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch

from inosgd.analysis.evaluation import Evaluation
from inosgd.files import write_private
from inosgd.runs.files import YARDSTICK
from inosgd.study.account import note_look
from inosgd.study.judging import judge
from inosgd.study.running import Prepared

NOT_PRIVATE = (
    "NOT PRIVATE: the yardstick was trained on the same examples without noise, and no budget accounts for it. Do not "
    "publish its score, nor a page that shows it."
)

EPOCHS, BATCH, LEARNING_RATE = 20, 64, 3e-3
FEWEST_STEPS, MOST_STEPS = 500, 2000


def train_yardstick(prepared: Prepared) -> Evaluation:
    """The evaluation of the same model, trained by Adam without privacy for 20 epochs: 500 to 2,000 steps.

    An account of the study books it as a look at private data without a charge.
    """
    study, data = prepared.study, prepared.data
    note_look(study, "yardstick")
    model = study.model(data, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    count = len(data.examples)
    steps = min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * math.ceil(count / BATCH)))
    shuffled = np.random.default_rng(0)
    order = np.concatenate([shuffled.permutation(count) for _ in range(math.ceil(steps * BATCH / count))])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()
        for step in range(steps):
            optimizer.zero_grad()
            losses = data.task.losses(model, data.examples.take(order[step * BATCH : (step + 1) * BATCH]))
            torch.autograd.backward(losses.mean())
            optimizer.step()
    return judge(data, model, steps)


def keep_yardstick(folder: Path, found: Evaluation) -> None:
    """Write the score of a yardstick beside a run; a report about the run then shows it and says what it is."""
    fields = {"not_private": NOT_PRIVATE, "scored_by": found.scored_by, "overall": found.overall, "worst": found.worst}
    write_private(folder / YARDSTICK, json.dumps(fields).encode())


def read_yardstick(folder: Path) -> float | None:
    """The score of the yardstick beside a run; None if there is none."""
    path = folder / YARDSTICK
    return float(json.loads(path.read_text(encoding="utf-8"))["overall"]) if path.is_file() else None
