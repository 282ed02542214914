"""Evidence: which trainings the repository's claims rest on, and carrying them out.

Every study is trained at the learning rate that suits the baseline: IDP-SGD with the paper's variant is tried with
each candidate on a validation split of the training data, and the rate with the best overall accuracy there is taken.
Some studies are reported at a stated rate as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inosgd.compare.comparison import compare, open_store
from inosgd.compare.entrant import Entrant
from inosgd.compare.results import Result, ResultStore
from inosgd.method import IDP_SGD, INO_SGD
from inosgd.paper.experiments import EXPERIMENTS, fair_entrant, methods
from inosgd.paper.registry import study_named
from inosgd.parallel.workers import LOCAL, Workers
from inosgd.plan_config import Fairness
from inosgd.study.study import Study

DEFAULT = Fairness()
SMALL_GRID = (Fairness(exponent=4.0, max_ratio=1.5), DEFAULT, Fairness(exponent=8.0, max_ratio=2.0))
GRID = (
    Fairness(exponent=4.0, max_ratio=1.5),
    DEFAULT,
    Fairness(exponent=4.0, max_ratio=3.0),
    Fairness(exponent=4.0, max_ratio=math.inf),
    Fairness(exponent=8.0, max_ratio=1.5),
    Fairness(exponent=8.0, max_ratio=2.0),
    Fairness(exponent=8.0, max_ratio=math.inf),
)

STAGES = 4
"""How often a training is judged: at a quarter, half and three quarters of its steps, and at their end."""

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Evidence:
    """What is trained of one study.

    Attributes:
        name: The row of the registry.
        seeds: How many paired seeds.
        candidates: Learning rates that the baseline is tried with.
        stated: Learning rates that are reported beside the chosen one; the first of them, if there is one, gets the
            whole programme, the others the methods and one fair plan.
        fair: The knobs of the fair plans.
        experiments: Ablations to run beside the methods, at the first stated rate.
        paper_accounting: Whether the paper's methods are also trained with its own accountant, RDP.
        tuning_seeds: How many seeds a candidate is tried with.
    """

    name: str
    seeds: int
    candidates: tuple[float, ...]
    stated: tuple[float, ...] = ()
    fair: tuple[Fairness, ...] = field(default=(DEFAULT,))
    experiments: tuple[str, ...] = ()
    paper_accounting: bool = False
    tuning_seeds: int = 1


ABLATIONS = ("tail-length", "tail-shape", "step-tail", "order", "pareto", "undersampling", "auto-clipping")

EVIDENCE = (
    Evidence("CF-EN", 10, (10, 20, 40, 80, 160, 320), (40.0,), GRID, ABLATIONS, True, 5),
    Evidence("CR-EN", 5, (30, 60, 120, 240, 480), (120.0,), GRID, ABLATIONS, True, 5),
    Evidence("CA-MLP", 5, (1.25, 2.5, 5, 10, 20), (2.5,), GRID, (), True, 5),
    Evidence("PN-EN", 5, (2.5, 5, 10, 20, 40, 80), (), SMALL_GRID, (), True, 2),
    Evidence("MN-PC", 5, (6, 12, 24, 48, 96), (12.0,), SMALL_GRID),
    Evidence("SU-LS", 5, (10, 20, 40, 80), (), SMALL_GRID),
    Evidence("CF-PC", 5, (6, 12, 24, 48), (), SMALL_GRID),
    Evidence("CM-PC", 5, (6, 12, 24, 48), (), SMALL_GRID),
)


@dataclass(frozen=True, eq=False)
class Collected:
    """The trainings of one study at one learning rate, by accountant, experiment and row."""

    evidence: Evidence
    study: Study
    chosen: bool
    tried: Mapping[float, float]
    rows: Mapping[str, Mapping[str, Sequence[Result]]]

    @property
    def learning_rate(self) -> float:
        """The learning rate of all of these trainings."""
        return self.study.config.learning_rate


def collect(
    evidence: Evidence, data: Path, cache: Path, *, workers: Workers = LOCAL, notice: Notice = lambda _: None
) -> Iterator[Collected]:
    """Train whatever ``cache`` does not hold, and give the results for each learning rate that is reported."""
    study = study_named(evidence.name, "laptop", data)
    tried = tune(evidence, study, cache, workers, notice)
    best = max(tried, key=lambda rate: tried[rate])
    for rate in dict.fromkeys((*evidence.stated, best)):
        at_rate = study.changed({"learning_rate": rate})
        whole = rate == (evidence.stated or (best,))[0]
        rows = _train_all(evidence, at_rate, whole, cache, workers, notice)
        yield Collected(evidence, at_rate, rate == best, tried, rows)


def setting_of(study: Study) -> str:
    """Who owns what, and what the plan is asked for."""
    plan = study.config.plan
    return (
        f"{study.description[0].upper()}{study.description[1:]}. {plan.steps} steps, expected batch "
        f"{plan.expected_batch_size:g}, mean threshold {plan.clipping_threshold:g}"
    )


def tune(evidence: Evidence, study: Study, cache: Path, workers: Workers, notice: Notice) -> dict[float, float]:
    """The baseline's overall accuracy on a validation split, by learning rate."""
    baseline = Entrant("idp-sgd", dataclasses.replace(IDP_SGD, variant=study.config.plan.variant))
    seeds = range(evidence.tuning_seeds)
    found = {}
    for rate in evidence.candidates:
        at_rate = study.changed({"learning_rate": float(rate)})
        store = _store(at_rate, cache, validation=True)
        for result in compare(at_rate, [baseline], seeds, store, workers=workers, validation=True, evaluations=1):
            notice(f"{study.name}, learning rate {rate:g} on validation: {result.final.overall:.3f}")
        found[float(rate)] = float(np.mean([result.final.overall for result in store.of(baseline, seeds)]))
    return found


def experiment_rows(evidence: Evidence, variant: str, *, whole: bool) -> dict[str, list[Entrant]]:
    """What is trained, by the name of the table it goes into; beside the ``whole`` only the methods and a fair plan."""
    knobs = evidence.fair if whole else (DEFAULT,)
    fair = [fair_entrant(method, fairness) for fairness in knobs for method in (IDP_SGD, INO_SGD)]
    tables = {variant: methods(variant), "fair": [methods("fair")[0], *fair]}
    if whole:
        other = "scale" if variant == "sample" else "sample"
        tables[other] = methods(other)
        tables |= {name: EXPERIMENTS[name].rows(variant) for name in evidence.experiments}
    return tables


def _train_all(
    evidence: Evidence, study: Study, whole: bool, cache: Path, workers: Workers, notice: Notice
) -> dict[str, dict[str, list[Result]]]:
    seeds, variant = range(evidence.seeds), study.config.plan.variant
    tables = experiment_rows(evidence, variant, whole=whole)
    found = _train(study, tables, seeds, cache, workers, notice)
    if evidence.paper_accounting and whole:
        by_renyi = study.changed({"accountant": "rdp"})
        rows = _train(by_renyi, {variant: methods(variant)}, seeds, cache, workers, notice)
        found[f"{variant}, RDP"] = rows[variant]
    return found


def _train(
    study: Study,
    tables: Mapping[str, Sequence[Entrant]],
    seeds: Sequence[int],
    cache: Path,
    workers: Workers,
    notice: Notice,
) -> dict[str, dict[str, list[Result]]]:
    store = _store(study, cache)
    entered = [row for rows in tables.values() for row in rows]
    for result in compare(study, entered, seeds, store, workers=workers, evaluations=STAGES):
        notice(f"{study.name}: {result.entrant['label']}, seed {result.seed}: {result.final.overall:.3f}")
    return {name: {row.label: store.of(row, seeds) for row in rows} for name, rows in tables.items()}


def _store(study: Study, cache: Path, *, validation: bool = False) -> ResultStore:
    config, purpose = study.config, "-validation" if validation else ""
    folder = cache / f"{study.name}-{config.plan.accountant}-{config.learning_rate:g}{purpose}"
    return open_store(study, folder, validation=validation)
