"""The canary audit: lower bounds on epsilon from worst-case gradients, one owner at a time.

The game, for an owner with rate q, threshold C, noise scale σ and T steps: a canary (`inosgd.audit.insertion`) is put
into the data by a fair coin, the model is trained, and the auditor says whether the canary was there.

white-box
    The auditor sees the parameters after every step, hence every noisy sum. Along the canary's coordinate, in units
    of σ, it is x_t ~ N(0, 1) without the canary and a mixture of N(0, 1) and, with probability q, N(C / σ, 1) with
    it. The score is the logarithm of the likelihood ratio under the claim,

        sum over t of log(1 - q + q exp(x_t / z - 1 / (2 z^2))),    z = σ / C.

    No other score separates better: with correct code the audit reaches the accountant's own trade-off.
black-box
    The auditor may ask the final model about the canary, whose answer is the canary's weight; the score is how far it
    moved, the sum of all x_t.
repeated
    Independent trainings on the study's data with one canary per owner. The first third of them chooses a threshold;
    on the others the counts are bounded by Clopper and Pearson's intervals (`inosgd.audit.bounds.Counts`). Two bounds:
    one without assumptions, and one for a mechanism of which only the amount of noise is in doubt.
one-run
    A single training with thousands of canaries per owner and the bound of Steinke, Nasr and Jagielski. It holds
    whatever canaries do to each other. A quarter of the canaries chooses how many of the others are guessed.
order
    Only for methods with a tail. Repeated trainings without real examples: public accomplices with equal losses and
    a canary that ranks before or behind them. The auditor, who knows the code, gives the accomplices signs such that
    every change of their weights by the canary adds up. With correct code the whole change is exactly C (Thm. 3.3).

All bounds of one audit hold together with its confidence (Bonferroni over owners, views and bounds). An owner's claim
is rejected if right guesses or the rates of right and wrong ones contradict its privacy profile, or a bound exceeds the
accounted epsilon; correct code is rejected with probability at most 1 - confidence. Presence by a coin is addition or
removal of one example, the relation that is accounted for, and bounds are at each owner's own delta. In a study that
protects units of several rows, a canary is a unit of `UNIT_ROWS` rows: a whole person is inserted or left out.

What is attacked: all of `train_step` as users run it. Canaries are rows of the training examples; batches come from the
step's own sampler, norms, clipping and sums from `BookkeepingEngine`, places and weights from the method's order and
tail, noise from the grid release, and every step is in a ledger that would refuse one too many. What is not: layers
other than a linear one (tests of `inosgd.gradients` compare them to plain autograd), `SecureSource` (a seed makes an
audit repeatable), and trainings by several processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inosgd import _validate
from inosgd._arrays import IntArray
from inosgd.audit.accomplices import play_order
from inosgd.audit.game import Game, Played, play
from inosgd.errors import InosgdError
from inosgd.parallel.runner import Failure, run_all
from inosgd.parallel.workers import LOCAL, Workers


@dataclass(frozen=True, eq=False)
class Task:
    """Some trainings of one kind: ``data``, ``one-run`` or ``order``."""

    game: Game
    kind: str
    rows: IntArray
    numbers: tuple[int, ...]


def play_task(task: Task) -> Played:
    """Carry out a task."""
    return Played.together([_play_number(task, number) for number in task.numbers])


def _play_number(task: Task, number: int) -> Played:
    label = f"{task.kind}/{number}"
    if task.kind == "order":
        games = [play_order(task.game, row, f"{label}/{row}") for row in task.rows.tolist()]
        return Played.side_by_side(games)
    return play(task.game, task.rows, label)


def tasks_of(game: Game, runs: int, canaries: int, *, runs_at_once: int = 4) -> list[Task]:
    """All trainings of an audit: ``runs`` repeated ones of each kind, and one with ``canaries`` canaries per owner."""
    _validate.whole(12, runs=runs)
    _validate.whole(40, canaries=canaries)
    kinds = ["data"] if game.practice.method.importance is None else ["data", "order"]
    chunks = [tuple(range(start, min(start + runs_at_once, runs))) for start in range(0, runs, runs_at_once)]
    single = Task(game, "one-run", np.repeat(game.owners, canaries), (0,))
    return [single, *(Task(game, kind, game.owners, numbers) for kind in kinds for numbers in chunks)]


def play_all(tasks: Sequence[Task], workers: Workers = LOCAL) -> Iterator[tuple[Task, Played]]:
    """Carry out tasks in parallel, and hand them over as they finish."""
    names = [f"{task.kind} {task.numbers[0]}" for task in tasks]
    for index, outcome in run_all(play_task, tasks, names=names, workers=workers):
        if isinstance(outcome, Failure):
            raise InosgdError(f"an audited training failed: {outcome.task}: {outcome.error}")
        yield tasks[index], outcome
