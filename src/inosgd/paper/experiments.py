"""Experiments: the paper's questions, each as the rows that have to be trained to answer it.

Every row is an `Entrant`; what is drawn from them (curves, worst owners, change against budget, classes within an
owner, Pareto fronts) is computed from the same results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inosgd import _validate
from inosgd.clipping import AutoClipping
from inosgd.compare.entrant import Entrant, entrants
from inosgd.errors import InvalidArgumentError
from inosgd.importance import BetaTail, Importance, StepTail
from inosgd.method import DP_SGD, IDP_SGD, INO_SGD, Method
from inosgd.order import ORDERS
from inosgd.plan_config import Fairness

TAIL_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
BETA_PARAMETERS = ((1.0, 1.0), (2.0, 1.0), (5.0, 1.0), (1.0, 2.0), (1.0, 5.0), (2.0, 2.0), (0.5, 0.5))
STEP_SHARES = (0.1, 0.25, 0.5, 0.75)
BUDGET_CUTS = (0.1, 0.2, 0.3, 0.4)
UNDERSAMPLING = (0.1, 0.2, 0.3, 0.4, 0.5)
EXPONENTS = (1.0, 4.0, 8.0, 12.0)
MAX_RATIOS = (1.5, 2.0, 3.0, math.inf)


@dataclass(frozen=True)
class Experiment:
    """A question of the paper.

    Attributes:
        name: What it is called on the command line.
        question: What it answers.
        figure: Where the paper answers it.
        rows: The entrants, for a variant.
    """

    name: str
    question: str
    figure: str
    rows: Callable[[str], list[Entrant]]


def _ino(label: str, variant: str, **changes: object) -> Entrant:
    return Entrant(label, dataclasses.replace(INO_SGD, variant=variant, **changes))  # type: ignore[arg-type]


def _idp(variant: str) -> Entrant:
    return Entrant("idp-sgd", dataclasses.replace(IDP_SGD, variant=variant))


def methods(variant: str) -> list[Entrant]:
    """The paper's three methods; DP-SGD plans by the strongest budget, whatever the variant."""
    return entrants((DP_SGD, IDP_SGD, INO_SGD), [variant])


def tail_lengths(variant: str) -> list[Entrant]:
    """Tails of different lengths, as shares of the expected sum of thresholds."""
    rows = [_ino(f"tail {share:.0%}", variant, importance=Importance(share=share)) for share in TAIL_SHARES]
    return [_idp(variant), *rows]


def tail_shapes(variant: str) -> list[Entrant]:
    """Beta tails with different parameters, half of the expected sum long."""
    rows = [_ino(f"Beta({a:g}, {b:g})", variant, importance=Importance(BetaTail(a, b))) for a, b in BETA_PARAMETERS]
    return [_idp(variant), *rows]


def step_tails(variant: str) -> list[Entrant]:
    """Four steps of equal length, together as long as these shares of the expected sum."""
    rows = [_ino(f"steps {share:.0%}", variant, importance=Importance(StepTail(), share)) for share in STEP_SHARES]
    return [_idp(variant), *rows]


def orders(variant: str) -> list[Entrant]:
    """Descending loss, random, ascending, and owner before loss."""
    return [_idp(variant), *(_ino(name, variant, order=order) for name, order in ORDERS.items())]


def budget_cuts(variant: str) -> list[Entrant]:
    """IDP-SGD after every budget has moved towards the strictest one."""
    return [
        dataclasses.replace(_idp(variant), label=f"idp-sgd, budgets cut {cut:.0%}", budget_cut=cut)
        for cut in BUDGET_CUTS
    ]


def fair_plans(_: str = "fair") -> list[Entrant]:
    """Fair plans over a grid of exponents and caps, with and without a tail."""
    grid = [Fairness(exponent=exponent, max_ratio=ratio) for exponent in EXPONENTS for ratio in MAX_RATIOS]
    return [fair_entrant(method, fairness) for fairness in grid for method in (IDP_SGD, INO_SGD)]


def fair_entrant(method: Method, fairness: Fairness) -> Entrant:
    """A method with a fair plan."""
    cap = "" if math.isinf(fairness.max_ratio) else f", at most {fairness.max_ratio:g}x"
    label = f"{method.name} fair {fairness.exponent:g}{cap}"
    return Entrant(label, dataclasses.replace(method, variant="fair"), fairness)


def pareto(variant: str) -> list[Entrant]:
    """Tail lengths against cut budgets, DP-SGD and fair plans."""
    fair = [fair_entrant(method, Fairness(max_ratio=ratio)) for ratio in MAX_RATIOS for method in (IDP_SGD, INO_SGD)]
    return [Entrant("dp-sgd", DP_SGD), *tail_lengths(variant), *budget_cuts(variant), *fair]


def undersampling(variant: str) -> list[Entrant]:
    """IDP-SGD after a share of the examples of the less private owners is dropped at random."""
    rows = [
        dataclasses.replace(_idp(variant), label=f"drop {share:.0%}", undersampling=share) for share in UNDERSAMPLING
    ]
    return [_idp(variant), *rows, _ino("ino-sgd", variant)]


def auto_clipping(variant: str) -> list[Entrant]:
    """Both individual methods with flat and with automatic clipping."""
    automatic = [
        Entrant(f"{method.name}, AUTO-S", dataclasses.replace(method, variant=variant, clipping=AutoClipping()))
        for method in (IDP_SGD, INO_SGD)
    ]
    return [_idp(variant), _ino("ino-sgd", variant), *automatic]


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("methods", "the score of every owner by each method", "Fig. 5 to 7 and 11 to 15", methods),
        Experiment("tail-length", "how long the tail should be", "Fig. 16", tail_lengths),
        Experiment("tail-shape", "which Beta parameters the tail should have", "Fig. 17", tail_shapes),
        Experiment("step-tail", "whether a step function does as well", "Fig. 18", step_tails),
        Experiment("order", "whether the order of losses matters", "Fig. 19", orders),
        Experiment("pareto", "what balance costs, by each way to it", "Fig. 20", pareto),
        Experiment("undersampling", "whether dropping liberal owners' data helps", "Table 1", undersampling),
        Experiment("auto-clipping", "whether automatic clipping changes the picture", "Fig. 21", auto_clipping),
        Experiment("fair-grid", "which exponent and cap a fair plan should have", "beyond the paper", fair_plans),
    )
}


def experiment_named(name: str) -> Experiment:
    """The experiment called ``name``."""
    _validate.one_of(EXPERIMENTS, experiment=name)
    return EXPERIMENTS[name]


def chosen_methods(variant: str, names: Sequence[str] | None) -> list[Entrant]:
    """The rows of ``methods`` with these names."""
    rows = methods(variant)
    if names is None:
        return rows
    known = [row.label for row in rows]
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"methods: {name!r} is not one of {', '.join(known)}; a plan is chosen by --variants, such as fair"
            )
    return [row for row in rows if row.label in names]
