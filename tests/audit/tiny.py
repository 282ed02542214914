"""A study so small that a test can audit it: two owners, forty examples, a dozen steps."""

from __future__ import annotations

import dataclasses

import numpy as np

from inosgd import INO_SGD, Budget, make_plan
from inosgd.audit.canary import play_task, tasks_of
from inosgd.audit.findings import findings
from inosgd.audit.game import Game, Played
from inosgd.audit.practice import Practice, honest
from inosgd.plan import Plan
from inosgd.study.study import StudyData, split_by_class
from tests.studies import perceptron_study

BUDGETS = {"strict": Budget(epsilon=2.0, delta=1e-5), "liberal": Budget(epsilon=8.0, delta=1e-5)}


def split(seed: int) -> StudyData:
    """Two blobs, each with an owner of its own; the numbers are the same for every seed."""
    rng = np.random.default_rng(3)
    labels = np.arange(60) % 2
    inputs = (rng.normal(size=(60, 4)) + labels[:, None]).astype(np.float32)
    return split_by_class(inputs, labels, labels, BUDGETS, ("0", "1"), 0)


STUDY = perceptron_study("two blobs", split, 4, 3, 2, rate=0.5, steps=6, expected_batch_size=24, clipping_threshold=0.5)

DATA = split(0)


def plan_for(variant: str = "sample", table=None) -> Plan:
    config = dataclasses.replace(STUDY.config.plan, variant=variant)
    return make_plan(DATA.owners.table if table is None else table, config, verify=False)


PLAN = plan_for()


def game_of(spoil=lambda practice: practice, method=INO_SGD, plan: Plan = PLAN, seed: int = 1) -> Game:
    practice: Practice = spoil(honest(plan, method))
    return Game(STUDY, DATA, plan, practice, seed)


def audited(game: Game, kinds: tuple[str, ...], runs: int, canaries: int, confidence: float = 0.95):
    """Findings from the trainings of ``kinds``; of the others only so many as the analysis needs."""
    played: dict[str, list[Played]] = {}
    for task in tasks_of(game, runs, canaries):
        if task.kind in kinds:
            played.setdefault(task.kind, []).append(play_task(task))
    together = {kind: Played.together(parts) for kind, parts in played.items()}
    return {(each.owner, each.view): each for each in findings(game, together, confidence)}
