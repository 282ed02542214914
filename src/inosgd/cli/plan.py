"""``inosgd plan``: from budgets to rates, thresholds and noise, and what they mean for every owner."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from inosgd.accounting import ACCOUNTANTS
from inosgd.accounting.profile import RiskProfile, gaussian_profile
from inosgd.analysis.guarantees import group_guarantees, owner_risks
from inosgd.cli.console import compact, messages, plain_table, results, rounded_up
from inosgd.cli.folders import write_whole
from inosgd.datasets.budgets import read_owner_table
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import VARIANTS, Fairness, make_plan, signal_ratio, signals, widest_angle

MOST_ROWS = 12
"""With more owners than this, the table shows the strictest, the median and the most liberal one."""

CURVE_NOISE_SCALES = (1.0, 2.0, 3.0, 4.0)
CURVE_RATES = (0.01, 0.02, 0.05, 0.1)


def plan_command(
    epsilon: Annotated[str | None, typer.Option(help="Budgets, separated by commas.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of records, separated by commas.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of every owner that names none.")] = 1e-5,
    owners: Annotated[Path | None, typer.Option(help="A CSV file: owner,epsilon,delta,size.")] = None,
    steps: Annotated[int, typer.Option(help="The number of steps.")] = 1000,
    batch: Annotated[float | None, typer.Option(help="The expected batch size.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The mean clipping threshold.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="The noise scale, instead of one of those.")] = None,
    variant: Annotated[str, typer.Option(help=f"One of: {', '.join(VARIANTS)}.")] = "fair",
    accountant: Annotated[str, typer.Option(help=f"One of: {', '.join(ACCOUNTANTS)}.")] = "pld",
    fairness: Annotated[float, typer.Option(help="Exponent of fair: 0 most signal, inf equal signals.")] = 8.0,
    max_ratio: Annotated[float, typer.Option(help="Cap of fair: 1 balance of DP-SGD, inf none.")] = 2.0,
    mix: Annotated[float, typer.Option(help="Mix of both: 0 scale, 1 sample.")] = 0.5,
    profile_margin: Annotated[float | None, typer.Option(help="Keep profiles this close to a Gaussian's.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All variants side by side.")] = False,
    curve: Annotated[bool, typer.Option("--curve", help="Rate and threshold against budget.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="The risks behind each epsilon.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file, which must not exist.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Plan sampling rates, clipping thresholds and noise for individual budgets."""
    _check_out(out, compare or curve)
    table = _owner_table(epsilon, sizes, delta, owners, curve)
    if curve:
        _show(_curve(table, steps, accountant), as_json, _curve_tables)
        return
    batch, threshold = _default_targets(batch, threshold, noise_scale, variant, compare)
    knobs = Fairness(fairness, max_ratio, mix)

    def planned(chosen: str) -> Plan:
        with messages().status(f"planning {chosen} for {len(table)} owners"):
            return make_plan(
                table,
                steps=steps,
                variant=chosen,
                expected_batch_size=batch,
                clipping_threshold=threshold,
                noise_scale=noise_scale,
                accountant=accountant,
                fairness=knobs,
                profile_margin=profile_margin,
            )

    if compare:
        _show(_comparison(planned), as_json, _comparison_table)
        return
    plan = planned(variant)
    if out is not None:
        write_whole(out, plan.to_json() + "\n")
    _show(_described(plan, profile, everyone=as_json), as_json, _plan_tables)


def _check_out(out: Path | None, several: bool) -> None:
    if out is None:
        return
    if several:
        raise InvalidArgumentError(f"out={str(out)!r}: --compare and --curve make no plan to write; leave it out")
    if out.exists():
        raise InvalidArgumentError(f"out={str(out)!r}: it already exists; choose a new file")
    if not out.parent.is_dir():
        raise InvalidArgumentError(f"out={str(out)!r}: there is no folder {str(out.parent)!r}; create it first")


def _owner_table(epsilon: str | None, sizes: str | None, delta: float, owners: Path | None, curve: bool) -> OwnerTable:
    if owners is not None and (epsilon or sizes):
        raise InvalidArgumentError(f"owners={str(owners)!r}: give either a file or --epsilon and --sizes, not both")
    if owners is not None:
        return read_owner_table(owners, delta)
    if epsilon is None and curve:
        epsilon = "0.1,0.2,0.5,1,2,3,5,8"
    if epsilon is None or (sizes is None and not curve):
        raise InvalidArgumentError("owners: give --owners FILE, or --epsilon 0.1,1 with --sizes 30596,29404")
    epsilons = _listed("epsilon", epsilon, float)
    counts = _listed("sizes", sizes, int) if sizes is not None else [1] * len(epsilons)
    if len(counts) != len(epsilons):
        raise InvalidArgumentError(f"sizes={sizes!r}: {len(epsilons)} budgets need as many sizes")
    names = tuple(f"owner {number}" for number in range(1, len(epsilons) + 1))
    return OwnerTable(names, np.array(epsilons), np.full(len(epsilons), delta), np.array(counts))


def _listed(name: str, text: str, convert: Callable[[str], Any]) -> list[Any]:
    try:
        values = [convert(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgumentError(f"{name}={text!r}: give numbers separated by commas") from None
    if any(abs(value) > 1e15 for value in values):
        raise InvalidArgumentError(f"{name}={text!r}: give numbers below 1e15")
    return values


def _default_targets(
    batch: float | None, threshold: float | None, noise_scale: float | None, variant: str, compare: bool
) -> tuple[float | None, float | None]:
    """A threshold of 1 where none is given: only the ratio of thresholds to the noise matters to privacy."""
    if noise_scale is not None and compare:
        raise InvalidArgumentError(f"noise_scale={noise_scale:g}: --compare needs --batch and --threshold instead")
    if noise_scale is None or variant == "sample":
        threshold = 1.0 if threshold is None else threshold
    return batch, threshold


def _described(plan: Plan, profile: bool, everyone: bool) -> dict[str, Any]:
    terms, strength = plan.at(0), signals(plan)
    known: dict[tuple[float, ...], dict[str, Any]] = {}
    rows = []
    for owner in range(len(plan.table)) if everyone else _shown_owners(plan):
        name, budget, size = plan.table.names[owner], plan.table.budget(owner), int(plan.table.sizes[owner])
        rate, threshold = float(terms.sampling_rates[owner]), float(terms.clipping_thresholds[owner])
        key = (rate, threshold, budget.epsilon, budget.delta, size)
        if key not in known:
            known[key] = _owner_guarantees(plan, owner, profile)
        rows.append(
            {
                "name": name,
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "size": size,
                "sampling_rate": rate,
                "clipping_threshold": threshold,
                "expected_records": rate * size,
                "signal": float(strength[owner]),
                "spent": float(plan.spent[owner]),
                "unspent": float(plan.table.epsilons[owner] - plan.spent[owner]),
                **known[key],
            }
        )
    return {
        "variant": plan.variant,
        "accountant": plan.accountant,
        "steps": plan.steps,
        "noise_scale": terms.noise_scale,
        "expected_batch_size": terms.expected_batch_size,
        "signal_ratio": signal_ratio(plan),
        "widest_angle": widest_angle(plan),
        "owner_count": len(plan.table),
        "owners": rows,
    }


def _owner_guarantees(plan: Plan, owner: int, profile: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"group": group_guarantees(plan, owner)}
    if profile:
        budget = plan.table.budget(owner)
        found["profile"] = dataclasses.asdict(owner_risks(plan, owner))
        found["gaussian_profile"] = dataclasses.asdict(gaussian_profile(budget.epsilon, budget.delta))
    return found


def _shown_owners(plan: Plan) -> list[int]:
    if len(plan.table) <= MOST_ROWS:
        return list(range(len(plan.table)))
    by_privacy = np.argsort(plan.table.privacy_ranks, kind="stable")
    return [int(by_privacy[0]), int(by_privacy[len(by_privacy) // 2]), int(by_privacy[-1])]


def _plan_tables(described: dict[str, Any]) -> list[Table | str]:
    title = f"[bold]{described['variant']} plan[/], {described['steps']} steps, accountant {described['accountant']}\n"
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
        f"largest signal is {described['signal_ratio']:.3g} times the smallest: the paper's condition for every "
        f"owner's loss to fall can hold up to an angle of {described['widest_angle']:.0f}° between gradients."
    )
    shown.append(
        "a step: expected records in a batch; signal: what an owner contributes over the noise; spent: of ε, for each "
        "single record; of 10: the ε of ten of them together. The guarantee is per record."
    )
    return shown


def _plan_table(described: dict[str, Any]) -> Table:
    headings = ("records", "rate", "threshold", "a step", "signal", "δ", "ε", "spent", "of 10")
    table = plain_table("owner", right=headings)
    for owner in described["owners"]:
        table.add_row(
            owner["name"],
            str(owner["size"]),
            f"{owner['sampling_rate']:.4g}",
            f"{owner['clipping_threshold']:.4g}",
            f"{owner['expected_records']:.4g}",
            f"{owner['signal']:.3g}",
            f"{owner['delta']:.3g}",
            f"{owner['epsilon']:.4g}",
            rounded_up(owner["spent"]),
            compact(owner["group"]["10"]) if "10" in owner["group"] else "-",
        )
    return table


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
            table.add_row(owner["name"], label, *(f"{owner[kind][key]:.4g}" for key in headings))
    return table


def _comparison(planned: Callable[[str], Plan]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for variant in VARIANTS:
        try:
            plan = planned(variant)
        except InfeasibleError as error:
            rows[variant] = {"infeasible": str(error)}
            continue
        by_privacy = np.argsort(plan.table.privacy_ranks, kind="stable")
        present = [int(owner) for owner in by_privacy if plan.table.sizes[owner] > 0]
        strength = signals(plan)
        rows[variant] = {
            "noise_scale": plan.at(0).noise_scale,
            "strictest_signal": float(strength[present[0]]),
            "most_liberal_signal": float(strength[present[-1]]),
            "signal_ratio": signal_ratio(plan),
            "widest_angle": widest_angle(plan),
            "least_spent_share": float((plan.spent / plan.table.epsilons)[present].min()),
        }
    return {"variants": rows}


def _comparison_table(compared: dict[str, Any]) -> list[Table | str]:
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
        "signal: rate x records x threshold / noise of the strictest and the most liberal owner; ratio: the largest "
        "over the smallest of any owner; angle: up to which the paper's condition can hold; least used: the smallest "
        "share of its budget that any owner spends."
    )
    return ["[bold]The same budgets, steps and batch by every variant[/]: signals\n", table, "", explained]


def _curve(table: OwnerTable, steps: int, accountant: str) -> dict[str, Any]:
    """Rates at threshold 1 for several noise scales, and thresholds at noise scale 4 for several rates (Fig. C.1)."""
    alone = OwnerTable(table.names, table.epsilons, table.deltas, np.full(len(table), 10**6))
    rates, thresholds = {}, {}
    with messages().status("planning curves"):
        for noise in CURVE_NOISE_SCALES:
            plan = make_plan(
                alone, steps=steps, variant="sample", clipping_threshold=1.0, noise_scale=noise, accountant=accountant
            )
            rates[f"{noise:g}"] = plan.at(0).sampling_rates.tolist()
        for rate in CURVE_RATES:
            batch = rate * int(alone.sizes.sum())
            plan = make_plan(
                alone, steps=steps, variant="scale", expected_batch_size=batch, noise_scale=4.0, accountant=accountant
            )
            thresholds[f"{rate:g}"] = plan.at(0).clipping_thresholds.tolist()
    return {
        "steps": steps,
        "accountant": accountant,
        "epsilons": table.epsilons.tolist(),
        "rate_by_noise_scale": rates,
        "threshold_by_rate": thresholds,
    }


def _curve_tables(curves: dict[str, Any]) -> list[Table | str]:
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


def _show(value: dict[str, Any], as_json: bool, tables: Callable[[dict[str, Any]], list[Table | str]]) -> None:
    if as_json:
        typer.echo(json.dumps(value, allow_nan=False, default=str))
        return
    for shown in tables(value):
        results().print(shown)
