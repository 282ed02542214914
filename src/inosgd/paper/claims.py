"""Claims: what the paper says, held against what was measured.

A claim is checked in every study that can speak to it. A single check is a plain rule on paired differences; the
verdict over all checks is *holds*, *holds in part*, or *does not hold*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inosgd.analysis.differences import Difference
from inosgd.compare import views
from inosgd.method import METHODS
from inosgd.paper.evidence import DEFAULT, Collected
from inosgd.paper.experiments import fair_entrant
from inosgd.paper.registry import SETTINGS

LEVEL = 0.05
"""Differences with a larger p-value are not told from chance."""

SMALL = 0.005
"""Half a point: overall accuracy that falls by less counts as preserved."""


@dataclass(frozen=True)
class Check:
    """Whether a claim holds in one study, and the numbers behind it."""

    where: str
    holds: bool
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A claim, where it comes from, and how one study is held against it (None where it has nothing to say)."""

    text: str
    source: str
    check: Callable[[Collected], Check | None]


def verdict(checks: Sequence[Check]) -> str:
    """One plain verdict."""
    holding = [check.where for check in checks if check.holds]
    if not checks:
        return "not measured"
    if len(holding) == len(checks):
        return "holds"
    if not holding:
        return "does not hold"
    failing = [check.where for check in checks if not check.holds]
    return f"holds in part: in {', '.join(holding)}; not in {', '.join(failing)}"


def place(collected: Collected) -> str:
    """How a study at one learning rate is referred to."""
    return f"{collected.study.name} at {collected.learning_rate:g}"


def ino_minus_idp(collected: Collected) -> Mapping[str, Any]:
    """Paired differences of INO-SGD and IDP-SGD with the paper's variant, by stage and measure."""
    rows = collected.rows[collected.study.config.plan.variant]
    found: Mapping[str, Any] = views.differences(rows)["ino-sgd - idp-sgd"]
    return found


def shown(difference: Difference | Mapping[str, Any]) -> str:
    """Points with a p-value.

    >>> shown({"mean": 0.0213, "p": 0.004})
    '+2.1 (p = .004)'
    """
    fields = difference if isinstance(difference, Mapping) else difference.__dict__
    return f"{100 * fields['mean']:+.1f}{shown_p(fields['p'])}"


def shown_p(p: float | None) -> str:
    """A p-value in brackets; nothing where there is none."""
    if p is None:
        return ""
    return " (p < .001)" if p < 0.001 else f" (p = {p:.3f})".replace("0.", ".", 1)


def _balance(collected: Collected) -> Check:
    found = ino_minus_idp(collected)["end"]["most_private"]
    return Check(place(collected), found["mean"] > 0 and _significant(found), shown(found))


def _balance_during(collected: Collected) -> Check:
    stages = ino_minus_idp(collected)
    means = [stages[stage]["most_private_loss"]["mean"] for stage in ("1/4", "1/2", "3/4")]
    numbers = ", ".join(f"{mean:+.2f}" for mean in means)
    return Check(place(collected), all(mean < 0 for mean in means), f"loss {numbers} at 1/4, 1/2, 3/4")


def _overall(collected: Collected) -> Check:
    found = ino_minus_idp(collected)["end"]["overall"]
    return Check(place(collected), not _worse(found), shown(found))


def _budget_line(collected: Collected) -> Check | None:
    rows = collected.rows[collected.study.config.plan.variant]
    line = views.change_against_budget(rows)["ino-sgd"]["end"]["line"]
    if line is None or len(rows["ino-sgd"][0].epsilons) < 3:
        return None
    holds = line["correlation"] < 0 and line["p"] < LEVEL
    return Check(place(collected), holds, f"r = {line['correlation']:.2f}{shown_p(line['p'])}")


def _strongest_budget(collected: Collected) -> Check:
    rows = collected.rows[collected.study.config.plan.variant]
    found = views.differences(rows)["dp-sgd - idp-sgd"]["end"]["overall"]
    return Check(place(collected), found["mean"] < 0 and _significant(found), shown(found))


def _order(collected: Collected) -> Check | None:
    rows = collected.rows.get("order")
    if rows is None:
        return None
    values = {
        name: float(np.mean([result.final.worst for result in rows[name]]))
        for name in ("descending-loss", "random", "ascending-loss")
    }
    descending, random, ascending = values.values()
    numbers = f"worst owner {100 * descending:.1f} / {100 * random:.1f} / {100 * ascending:.1f}"
    return Check(place(collected), descending > random > ascending, numbers)


def _tail(experiment: str) -> Callable[[Collected], Check | None]:
    def check(collected: Collected) -> Check | None:
        rows = collected.rows.get(experiment)
        if rows is None:
            return None
        found = views.differences(rows)
        moderate = {name: stages["end"] for name, stages in found.items() if not _beyond_half(name)}
        good = [name for name, end in moderate.items() if not (_worse(end["most_private"]) or _worse(end["overall"]))]
        return Check(
            place(collected), len(good) == len(moderate), f"{len(good)} of {len(moderate)} choices are no worse"
        )

    return check


def _beyond_half(name: str) -> bool:
    """Tails longer than half of the expected sum, which the paper itself advises against."""
    return any(share in name for share in ("75%", "100%"))


def _pareto(collected: Collected) -> Check | None:
    rows = collected.rows.get("pareto")
    if rows is None:
        return None
    points = views.pareto({label: results for label, results in rows.items() if "fair" not in label})
    cut = [label for label in points if "cut" in label]
    beaten = [label for label in cut if any(other.startswith("tail") for other in points[label]["dominated_by"])]
    return Check(
        place(collected), len(beaten) == len(cut), f"{len(beaten)} of {len(cut)} cut budgets are dominated by a tail"
    )


def _auto_clipping(collected: Collected) -> Check | None:
    rows = collected.rows.get("auto-clipping")
    if rows is None:
        return None
    found = views.differences(rows, "idp-sgd, AUTO-S")["ino-sgd, AUTO-S - idp-sgd, AUTO-S"]["end"]
    holds = found["most_private"]["mean"] > 0 and _significant(found["most_private"])
    return Check(
        place(collected),
        holds,
        f"{shown(found['most_private'])} strictest, {shown(found['overall'])} overall, both with AUTO-S",
    )


def _undersampling(collected: Collected) -> Check | None:
    rows = collected.rows.get("undersampling")
    if rows is None:
        return None
    found = {
        name: stages["end"]["overall"] for name, stages in views.differences(rows).items() if name.startswith("drop")
    }
    lower = [name for name, difference in found.items() if difference["mean"] < 0]
    changes = " ".join(f"{100 * difference['mean']:+.1f}" for difference in found.values())
    return Check(place(collected), len(lower) == len(found), f"overall {changes} for 10% to 50%")


def _run_time(collected: Collected) -> Check | None:
    """Of networks only: a step of a linear head takes two milliseconds, of which sorting is a visible part."""
    if SETTINGS[collected.study.name].model not in ("PC", "RN", "LS"):
        return None
    ratio = views.run_time(collected.rows[collected.study.config.plan.variant]).get("ino-sgd", np.nan)
    return Check(place(collected), ratio <= 1.05, f"{ratio:.2f} times")


def fair_against_paper(collected: Collected, method: str = "idp-sgd") -> dict[str, Difference]:
    """The default fair plan against the paper's INO-SGD with the paper's variant, paired: overall and worst owner."""
    fair = collected.rows["fair"][fair_entrant(METHODS[method], DEFAULT).label]
    paper = collected.rows[collected.study.config.plan.variant]["ino-sgd"]
    found = views.differences({"fair": fair, "idp-sgd": paper})["fair - idp-sgd"]["end"]
    return {name: Difference(**found[name]) for name in ("overall", "worst")}


def _fair(collected: Collected) -> Check:
    found = fair_against_paper(collected)
    holds = found["worst"].mean > 0 and found["overall"].mean > -SMALL
    return Check(place(collected), holds, f"{shown(found['overall'])} overall, {shown(found['worst'])} worst owner")


CLAIMS = (
    Claim("INO-SGD gives the strictest owner a higher accuracy than IDP-SGD at the end", "Sec. 4.1", _balance),
    Claim("and throughout training (lower loss of the strictest owner)", "Sec. 4.1", _balance_during),
    Claim("INO-SGD preserves or improves overall accuracy", "Sec. 4.2", _overall),
    Claim("The stricter the budget, the more an owner gains", "Fig. 6", _budget_line),
    Claim("DP-SGD at the strongest budget is worse overall than IDP-SGD", "App. C.2.1", _strongest_budget),
    Claim("Descending loss is a better order than random, random than ascending", "Fig. 19", _order),
    Claim("Any tail of up to half of the expected sum does no harm", "Fig. 16", _tail("tail-length")),
    Claim("Any parameters of the Beta tail do no harm", "Fig. 17", _tail("tail-shape")),
    Claim("A step function does as well", "Fig. 18", _tail("step-tail")),
    Claim("INO-SGD Pareto-dominates lowering all budgets", "Fig. 20", _pareto),
    Claim("INO-SGD repairs IDP-SGD with automatic clipping", "Fig. 21", _auto_clipping),
    Claim("Dropping data of liberal owners costs overall accuracy", "Table 1", _undersampling),
    Claim("INO-SGD takes no longer than IDP-SGD on a network (at most 5% here)", "App. C.2.4", _run_time),
    Claim("A fair plan without a tail beats the paper's INO-SGD", "ours", _fair),
)


def checks_of(claim: Claim, everything: Sequence[Collected]) -> list[Check]:
    """The claim in every study that has something to say about it."""
    found = [claim.check(collected) for collected in everything]
    return [check for check in found if check is not None]


def _worse(difference: Mapping[str, Any]) -> bool:
    """Lower by more than a little, or lower by anything that is significant."""
    mean: float = difference["mean"]
    return mean < -SMALL or (mean < 0 and _significant(difference))


def _significant(difference: Mapping[str, Any]) -> bool:
    return difference["p"] is not None and difference["p"] < LEVEL
