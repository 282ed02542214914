"""The page of evidence: verdicts first, then every number they rest on, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inosgd.compare import views
from inosgd.compare.results import Result
from inosgd.paper.claims import CLAIMS, checks_of, place, shown, verdict
from inosgd.paper.evidence import EVIDENCE, Collected, setting_of
from inosgd.paper.experiments import EXPERIMENTS
from inosgd.paper.registry import SETTINGS

INTRODUCTION = """# Evidence

Written by `inosgd evidence --data DIR`; run it again to repeat everything. Methods with the same seed share the split,
the initial model, the Poisson draws and the noise, so differences are paired; p-values are of two-sided paired t-tests,
not corrected for their number. Accounting is by PLD except where RDP is named. "Strictest" is the owner with the
smallest budget; percentages are of held-out examples. Scale `laptop` of the registry; hyperparameters that the paper
does not state are ours. The learning rate marked *chosen* is the best of the candidates for IDP-SGD with the paper's
variant, on a fifth of the training data that was held out for this; other rates are stated ones.

Verdicts follow from rules. "Better" and "worse overall" ask for a difference of the right sign with p < .05;
"preserves" and "no harm" allow a loss of up to half a point that is not significant; "throughout" asks for the sign at
1/4, 1/2 and 3/4; an order and a fair plan are judged by their means. The rule for tails was changed once, after a first
look at results: before, the strictest owner's mean had to rise, which a tail that does no harm need not do.

Where a claim of the paper does not hold here, its larger networks, longer trainings or whole data sets may still show
it: these are small studies.
"""


def render(everything: Sequence[Collected]) -> str:
    """The whole page."""
    parts = [INTRODUCTION, *_missing(everything), _verdicts(everything)]
    parts += [_section(collected) for collected in everything]
    return "\n".join(parts).rstrip() + "\n"


def _missing(everything: Sequence[Collected]) -> list[str]:
    """What a reader would look for and not find."""
    done = {collected.evidence.name for collected in everything}
    missing = [evidence.name for evidence in EVIDENCE if evidence.name not in done]
    return [f"Not trained yet: {', '.join(missing)}.\n"] if missing else []


def _verdicts(everything: Sequence[Collected]) -> str:
    lines = ["## Verdicts", "", "| claim | source | verdict | measured |", "|---|---|---|---|"]
    for claim in CLAIMS:
        checks = checks_of(claim, everything)
        numbers = "; ".join(f"{check.where}: {check.numbers}" for check in checks)
        lines.append(f"| {claim.text} | {claim.source} | **{verdict(checks)}** | {numbers} |")
    return "\n".join([*lines, ""])


def _section(collected: Collected) -> str:
    study, plan = collected.study, collected.study.config.plan
    lines = [
        f"## {study.name}, learning rate {collected.learning_rate:g}{' (chosen)' if collected.chosen else ''}",
        "",
        f"{setting_of(study)}, model {SETTINGS[study.name].model}, {collected.evidence.seeds} seeds; the paper's "
        f"variant is `{plan.variant}`."
        f"{' Scores, those of owners too, are balanced over classes.' if SETTINGS[study.name].balanced else ''}",
        "",
        f"Baseline on validation by learning rate: {_tried(collected.tried)}.",
        "",
        *_methods_table(collected),
        *_stages_table(collected),
        "",
    ]
    for name in collected.evidence.experiments:
        if name in collected.rows:
            asked = EXPERIMENTS[name]
            lines += [f"### {place(collected)}: {asked.question} ({asked.figure})", ""]
            lines += _table(name, collected.rows[name])
    return "\n".join(lines)


def _tried(tried: Mapping[float, float]) -> str:
    return ", ".join(f"{rate:g}: {100 * accuracy:.1f}" for rate, accuracy in tried.items())


def _methods_table(collected: Collected) -> list[str]:
    """By plan; fair plans are held against the paper's INO-SGD, the others against IDP-SGD with the same plan."""
    names = [name for name in collected.rows if name not in (*collected.evidence.experiments, "fair")]
    lines = [line for name in names for line in _table(f"Plan `{name}`", collected.rows[name])]
    paper = collected.rows[collected.study.config.plan.variant]["ino-sgd"]
    label = f"ino-sgd, plan {collected.study.config.plan.variant}"
    return lines + _table("Fair plans", {label: paper, **collected.rows["fair"]}, label)


def _table(title: str, rows: Mapping[str, Sequence[Result]], baseline: str = views.BASELINE) -> list[str]:
    lines = [
        f"{title}; differences are to {baseline}:",
        "",
        "| row | overall | worst owner | strictest | imbalance | overall, difference | worst, difference |",
        "|---|---|---|---|---|---|---|",
    ]
    found = views.differences(rows, baseline)
    for label, row in views.summarize(rows).items():
        end = found.get(f"{label} - {baseline}", {}).get("end")
        cells = [_percent(row[measure]) for measure in ("overall", "worst", "most_private", "imbalance")]
        cells += ["", ""] if end is None else [shown(end["overall"]), shown(end["worst"])]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _stages_table(collected: Collected) -> list[str]:
    """INO-SGD minus IDP-SGD with the paper's variant, over training."""
    found = views.differences(collected.rows[collected.study.config.plan.variant])["ino-sgd - idp-sgd"]
    lines = [
        f"INO-SGD minus IDP-SGD (`{collected.study.config.plan.variant}`) over training:",
        "",
        "| | overall | worst owner | strictest | strictest's loss |",
        "|---|---|---|---|---|",
    ]
    for stage, measures in found.items():
        loss = measures["most_private_loss"]
        cells = [shown(measures[name]) for name in ("overall", "worst", "most_private")]
        lines.append(f"| {stage} | " + " | ".join(cells) + f" | {loss['mean']:+.3f} |")
    return lines


def _percent(value: Mapping[str, float]) -> str:
    if not math.isfinite(value["mean"]):
        return ""
    return f"{100 * value['mean']:.1f} ± {100 * value['sd']:.1f}"
