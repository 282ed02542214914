"""How plans look in a terminal."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.table import Table

from inosgd.accounting.profile import RiskProfile
from inosgd.cli.console import compact, plain_table
from inosgd.owners import plural
from inosgd.shown import BUDGET, SPENT, rounded_up, spending_shown

AUTO_PLAN = (
    "This is the plan of `auto` where no class shares are declared: liberal owners add to what is learnt and do not "
    "drown out the strict ones. "
)


def plan_tables(described: dict[str, Any]) -> list[Table | str]:
    """A plan, its risks where they were asked for, and what the columns mean."""
    deltas, unit = sorted({owner["delta"] for owner in described["owners"]}), described["unit"]
    title = f"[bold]{described['variant']} plan[/], {described['steps']} steps, accountant {described['accountant']}"
    title += f", δ {deltas[0]:.3g}\n" if len(deltas) == 1 else f", δ {deltas[0]:.3g} to {deltas[-1]:.3g}\n"
    shown: list[Table | str] = [title, _plan_table(described), ""]
    if "profile" in described["owners"][0]:
        shown.append("The risks behind each ε, and those of a Gaussian mechanism with the same budget\n")
        shown += [_profile_table(described["owners"]), ""]
        shown.append(
            "advantage: the most by which any membership test beats guessing; δ/10 to δ/1000: the ε there; TPR: the "
            "best true positive rate of a test with that false positive rate."
        )
    if len(described["owners"]) < described["owner_count"]:
        shown.append(f"Of {described['owner_count']} owners: the strictest, the median and the most liberal.")
    shown.append(
        f"Noise scale {described['noise_scale']:.6g}, expected batch {described['expected_batch_size']:.6g}. The "
        f"largest signal of an owner is {described['signal_ratio']:.3g} times the smallest, and "
        f"{described['signal_ratio_per_example']:.3g} times per example. By Thm. 3.1 of the paper the losses of any "
        f"two owners can fall together if their gradients are less than {described['widest_angle']:.0f}° apart."
    )
    if "filter" in described:
        cost = described["filter"]["noise_by_filter"] / described["filter"]["noise_by_pld"] - 1
        shown.append(
            "This plan is for what accounts leave. Their charges are added by a Rényi filter of one order per owner: "
            f"for whole budgets that takes {cost:.1%} more noise than privacy-loss distributions, which hold only for "
            "a programme that is declared before its first training."
        )
    if gains := f"{AUTO_PLAN if described['variant'] == 'fair' else ''}{described['gains']}":
        shown.append(gains)
    shown.append(f"A learning rate of 1 in noise units is {described['rate_of_noise_unit']:.4g} in the usual unit.")
    shown.append(
        f"in a step: expected {plural(unit)} of the owner in a batch; signal: the most that they can add to the sum, "
        f"divided by the noise; spent ε: of each single {unit}; ε of 10: of ten of them together. The guarantee is per "
        f"{unit}."
    )
    return shown


def comparison_tables(compared: dict[str, Any]) -> list[Table | str]:
    """All variants side by side."""
    headings = ("noise", "strictest", "most liberal", "ratio", "angle", "least used")
    table = plain_table("variant", right=headings)
    for variant, row in compared["variants"].items():
        if "infeasible" in row:
            table.add_row(variant, "infeasible", *[""] * (len(headings) - 1))
            continue
        table.add_row(
            variant,
            f"{row['noise_scale']:.5g}",
            f"{row['strictest_signal']:.4g}",
            f"{row['most_liberal_signal']:.4g}",
            f"{row['signal_ratio']:.3g}",
            f"{row['widest_angle']:.0f}°",
            f"{100 * row['least_spent_share']:.0f} %",
        )
    explained = (
        "signal: rate x examples x threshold / noise of the strictest and the most liberal owner; ratio: the largest "
        "over the smallest of any owner; angle: between gradients, up to which every owner's loss can fall; least "
        "used: the smallest share of its budget that any owner spends."
    )
    return ["[bold]The same budgets, steps and batch by every variant[/]: signals\n", table, "", explained]


def curve_tables(curves: dict[str, Any]) -> list[Table | str]:
    """Rates and thresholds against budgets."""
    shown: list[Table | str] = []
    titles = {
        "rate_by_noise_scale": ("Sampling rate by budget at threshold 1 (SAMPLE)", "noise"),
        "threshold_by_rate": ("Clipping threshold by budget at noise scale 4 (SCALE)", "rate"),
    }
    for key, (title, label) in titles.items():
        headings = tuple(f"{label} {value}" for value in curves[key])
        shown.append(f"[bold]{title}[/], {curves['steps']} steps, {curves['accountant']}\n")
        table = plain_table("ε", right=headings)
        for row, epsilon in enumerate(curves["epsilons"]):
            table.add_row(f"{epsilon:g}", *(f"{column[row]:.4g}" for column in curves[key].values()))
        shown += [table, ""]
    return shown


def _plan_table(described: dict[str, Any]) -> Table:
    headings = (plural(described["unit"]), "rate", "threshold", "in a step", "signal", BUDGET, SPENT, "ε of 10")
    table = plain_table("owner", right=headings)
    for owner in described["owners"]:
        table.add_row(
            owner["name"],
            str(owner["size"]),
            f"{owner['sampling_rate']:.4g}",
            f"{owner['clipping_threshold']:.4g}",
            f"{owner['expected_records']:.4g}",
            f"{owner['signal']:.3g}",
            *_budget_and_spent(owner),
            compact(owner["group"]["10"]) if "10" in owner["group"] else "-",
        )
    return table


def _budget_and_spent(owner: dict[str, Any]) -> tuple[str, str]:
    shown = spending_shown(owner["epsilon"], owner["delta"], owner["spent"])
    return shown.budget, shown.spent


def _profile_table(owners: list[dict[str, Any]]) -> Table:
    headings = {
        "advantage": "advantage",
        "epsilon_at_tenth": "δ/10",
        "epsilon_at_hundredth": "δ/100",
        "epsilon_at_thousandth": "δ/1000",
        "true_positive_rate_at_1_percent": "TPR 1%",
        "true_positive_rate_at_1_permille": "TPR 0.1%",
    }
    if set(headings) != {field.name for field in dataclasses.fields(RiskProfile)} - {"delta"}:
        raise TypeError("a risk has no heading")
    table = plain_table("owner", "", right=tuple(headings.values()))
    for owner in owners:
        for kind, label in (("profile", "planned"), ("gaussian_profile", "Gaussian")):
            table.add_row(owner["name"], label, *(rounded_up(owner[kind][key]) for key in headings))
    return table
