"""``inosgd plan``: from budgets to rates, thresholds and noise, and what they mean for every owner."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from inosgd.accounting import ACCOUNTANTS
from inosgd.analysis.plans import budget_curves, compare_variants, describe_plan
from inosgd.cli.console import messages, results
from inosgd.cli.folders import write_whole
from inosgd.cli.plan_tables import comparison_tables, curve_tables, plan_tables
from inosgd.data.budgets import read_owner_table
from inosgd.errors import InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.planning import VARIANTS, Fairness, PlanConfig, make_plan


def plan_command(
    epsilon: Annotated[str | None, typer.Option(help="Budgets, separated by commas.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of examples, separated by commas.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of every owner that names none.")] = 1e-5,
    owners: Annotated[Path | None, typer.Option(help="A CSV file: owner,epsilon,delta,size.")] = None,
    steps: Annotated[int, typer.Option(help="The number of steps.")] = 1000,
    batch: Annotated[float | None, typer.Option(help="The expected batch size.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The mean clipping threshold.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="The noise scale, instead of one of those.")] = None,
    variant: Annotated[str, typer.Option(help=f"One of: {', '.join(VARIANTS)}.")] = "fair",
    accountant: Annotated[str, typer.Option(help=f"One of: {', '.join(ACCOUNTANTS)}.")] = "pld",
    fairness: Annotated[
        float, typer.Option(help="Exponent of fair: 0 most signal, inf equal signals.")
    ] = Fairness().exponent,
    max_ratio: Annotated[
        float, typer.Option(help="Cap of fair: 1 balance of DP-SGD, inf none.")
    ] = Fairness().max_ratio,
    mix: Annotated[float, typer.Option(help="Mix of both: 0 scale, 1 sample.")] = 0.5,
    profile_margin: Annotated[float | None, typer.Option(help="Keep profiles this close to a Gaussian's.")] = None,
    allow_large_deltas: Annotated[
        bool, typer.Option("--allow-large-deltas", help="Plan for deltas of 1 / examples and more.")
    ] = False,
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
        with messages().status("planning curves"):
            curves = budget_curves(table, steps, accountant)
        _show(curves, as_json, curve_tables)
        return
    batch, threshold = _default_targets(batch, threshold, noise_scale, variant, compare)
    knobs = Fairness(fairness, max_ratio, mix)

    def planned(chosen: str) -> Plan:
        with messages().status(f"planning {chosen} for {len(table)} owners"):
            return make_plan(
                table,
                PlanConfig(
                    steps=steps,
                    variant=chosen,
                    expected_batch_size=batch,
                    clipping_threshold=threshold,
                    noise_scale=noise_scale,
                    accountant=accountant,
                    fairness=knobs,
                    profile_margin=profile_margin,
                    allow_large_deltas=allow_large_deltas,
                ),
            )

    if compare:
        _show(compare_variants(planned), as_json, comparison_tables)
        return
    plan = planned(variant)
    if out is not None:
        write_whole(out, plan.to_json() + "\n")
    _show(describe_plan(plan, profile, everyone=as_json), as_json, plan_tables)


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


def _show(value: dict[str, Any], as_json: bool, tables: Callable[[dict[str, Any]], list[Table | str]]) -> None:
    if as_json:
        typer.echo(json.dumps(_without_infinity(value), allow_nan=False))
        return
    for shown in tables(value):
        results().print(shown)


def _without_infinity(value: Any) -> Any:
    """The same with null for numbers that JSON cannot hold: no finite epsilon could be certified."""
    if isinstance(value, dict):
        return {key: _without_infinity(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_infinity(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
