"""The page of the frontier: whether ``auto`` keeps what it promises, then every number, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from inosgd.analysis.differences import Difference, paired_difference
from inosgd.analysis.summary import mean_sd
from inosgd.method import AUTO, DP_SGD, IDP_SGD, INO_SGD
from inosgd.paper import frontier
from inosgd.paper.frontier import FRONTIER, Measured, Outcome

MEASURES: dict[str, Callable[[Outcome], float]] = {
    "overall": lambda outcome: outcome.overall,
    "worst owner": lambda outcome: outcome.worst,
}
LARGEST_LOSS = 0.005
"""By how much ``auto`` may be behind anywhere."""


@dataclass(frozen=True)
class Held:
    """A method less another in one study and measure, with its p-value after Holm's correction."""

    study: str
    against: str
    measure: str
    difference: Difference
    corrected: float

    @property
    def better(self) -> bool:
        """Whether it is ahead, and that is not put down to chance."""
        return self.difference.mean > 0 and self.corrected < 0.05

    @property
    def worse(self) -> bool:
        """Whether it is behind by more than is allowed."""
        return self.difference.mean < -LARGEST_LOSS


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, corrected, largest = sorted(range(len(p_values)), key=lambda row: p_values[row]), [0.0] * len(p_values), 0.0
    for rank, row in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[row]))
        corrected[row] = round(largest, 15)
    return corrected


def held_against(everything: Sequence[Measured], against: str, method: str = AUTO.name) -> list[Held]:
    """A method against another in all studies and measures."""
    found = []
    for measured in everything:
        ours, theirs = measured.rows[method], measured.rows[against]
        for name, measure in MEASURES.items():
            pairs = [[measure(outcome) for outcome in rows] for rows in (ours, theirs)]
            found.append((measured.entry.name, name, paired_difference(*pairs)))
    corrected = holm([1.0 if each.p is None else each.p for _, _, each in found])
    return [Held(study, against, name, each, p) for (study, name, each), p in zip(found, corrected, strict=True)]


def render(everything: Sequence[Measured]) -> str:
    """The whole page."""
    protocol = (frontier.__doc__ or "").partition("\n\n")[2].strip().replace("``", "`")
    parts = ["# The frontier", "", "Written by `inosgd evidence`; run it again to repeat everything.", "", protocol, ""]
    missing = [entry.name for entry in FRONTIER if entry.name not in {each.entry.name for each in everything}]
    if missing:
        parts += [f"Not trained yet: {', '.join(missing)}.", ""]
    parts += ["Every training in numbers, by seed: [frontier](frontier).", ""]
    parts += [*_verdicts(everything), *_papers_comparisons(everything)]
    for measured in everything:
        parts += _section(measured)
    return "\n".join(parts).rstrip() + "\n"


def _verdicts(everything: Sequence[Measured]) -> list[str]:
    lines = ["## auto against DP-SGD and the paper's INO-SGD", ""]
    for against in (DP_SGD.name, INO_SGD.name):
        held = held_against(everything, against)
        by_study = {
            name: [each for each in held if each.study == name] for name in dict.fromkeys(h.study for h in held)
        }
        both = [name for name, rows in by_study.items() if all(row.better for row in rows)]
        behind = [name for name, rows in by_study.items() if any(row.worse for row in rows)]
        higher = sum(all(row.difference.mean > 0 for row in rows) for rows in by_study.values())
        lines += [
            f"Against {against}: the higher mean in both measures in {higher} of {len(by_study)} studies; "
            f"better in both, beyond chance, in {len(both)}{_named(both)}; "
            f"behind by more than half a point in {len(behind)}{_named(behind)}.",
            "",
        ]
    lines += ["| study | rule found on it | against | overall | worst owner |", "|---|---|---|---|---|"]
    for against in (DP_SGD.name, INO_SGD.name):
        held = held_against(everything, against)
        for measured in everything:
            cells = [_difference(each) for each in held if each.study == measured.entry.name]
            found_on = "yes" if measured.entry.found_on else "no"
            lines.append(f"| {measured.entry.name} | {found_on} | {against} | {' | '.join(cells)} |")
    return [*lines, "", "Differences in points with 95% intervals; p-values are Holm's.", ""]


def _papers_comparisons(everything: Sequence[Measured]) -> list[str]:
    lines = [
        "## The paper's comparisons, each method at its own rate in noise units",
        "",
        "At one learning rate in batch units for all methods, the same comparisons are in [the evidence](RESULTS.md).",
        "",
        "| study | INO-SGD less IDP-SGD: overall | worst owner | IDP-SGD less DP-SGD: overall | worst owner |",
        "|---|---|---|---|---|",
    ]
    pairs = ((INO_SGD.name, IDP_SGD.name), (IDP_SGD.name, DP_SGD.name))
    held = [each for method, against in pairs for each in held_against(everything, against, method)]
    for measured in everything:
        cells = [_difference(each) for each in held if each.study == measured.entry.name]
        lines.append(f"| {measured.entry.name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _difference(held: Held) -> str:
    difference = held.difference
    half = math.nan
    if difference.pairs > 1:
        half = float(stats.t.ppf(0.975, difference.pairs - 1)) * difference.sd / math.sqrt(difference.pairs)
    p = "p < .001" if held.corrected < 0.001 else f"p = {held.corrected:.3f}".replace("0.", ".")
    return f"{100 * difference.mean:+.1f} ± {100 * half:.1f} ({p})"


def _section(measured: Measured) -> list[str]:
    lines = [
        f"## {measured.entry.name}",
        "",
        f"{measured.setting}, {len(measured.rows[AUTO.name])} seeds; the paper's variant is `{measured.variant}`, "
        f"and the score is {measured.scored_by}.",
        "",
        *_table(measured.rows, {label: rate for label, (rate, _) in measured.rates.items()}),
        *([measured.entry.note, ""] if measured.entry.note else []),
    ]
    if measured.ablation:
        label = f"auto, at {measured.rates[AUTO.name][0]:g}"
        rows = {label: measured.rows[AUTO.name], **measured.ablation}
        lines += ["What each part contributes:", "", *_table(rows, {})]
    return lines


def _table(rows: Mapping[str, Sequence[Outcome]], rates: Mapping[str, float]) -> list[str]:
    named = ["rate"] if rates else []
    heads = ["row", *named, "overall", "worst owner", "balanced accuracy", "last iterate: overall", "worst owner"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for label, outcomes in rows.items():
        last = [outcome.last for outcome in outcomes if outcome.last is not None]
        cells = [label, *([f"{rates[label]:g}"] if rates else [])]
        cells += [_percent([measure(outcome) for outcome in outcomes]) for measure in MEASURES.values()]
        cells.append(_percent([outcome.balanced for outcome in outcomes]))
        cells += [_percent(values) for values in zip(*last, strict=True)] or ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _percent(values: Sequence[float]) -> str:
    found = mean_sd(values)
    return f"{100 * found.mean:.1f} ± {100 * found.sd:.1f}"
