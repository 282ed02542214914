"""``inosgd plan``: from budgets to rates, thresholds and noise, and what they mean for every owner."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from inosgd import _validate
from inosgd.analysis.plans import budget_curves, compare_variants, describe_plan
from inosgd.cli.console import messages, results
from inosgd.cli.folders import check_new_file, write_whole
from inosgd.cli.options import (
    PLAN_SETTINGS,
    AccountOptions,
    AllowLargeDeltas,
    AsJson,
    PlanSettings,
    settings,
    with_groups,
)
from inosgd.cli.plan_tables import comparison_tables, curve_tables, plan_tables
from inosgd.data.budgets import read_owner_table
from inosgd.errors import InvalidArgumentError
from inosgd.owners import EXAMPLE, OwnerTable
from inosgd.plan import Plan
from inosgd.planning import VARIANTS, PlanConfig, Rooms, make_plan

VIEWS = ("plan", "profile", "variants", "curves")


@with_groups
def plan_command(
    epsilon: Annotated[str | None, typer.Option(help="Budgets, separated by commas.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of examples, or units, separated by commas.")] = None,
    delta: Annotated[float, typer.Option(help="Delta of every owner that names none.")] = 1e-5,
    owners: Annotated[Path | None, typer.Option(help="A CSV file: owner,epsilon,delta,size.")] = None,
    unit: Annotated[str, typer.Option(help="What each budget protects and sizes count, such as patient.")] = EXAMPLE,
    steps: Annotated[int, typer.Option(help="The number of steps.")] = 1000,
    batch: Annotated[float | None, typer.Option(help="The expected batch size.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The mean clipping threshold.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="The noise scale, instead of one of those.")] = None,
    variant: Annotated[str, typer.Option(help=f"One of: {', '.join(VARIANTS)}.")] = "fair",
    show: Annotated[
        str, typer.Option(help="plan, profile (and the risks behind each epsilon), variants, or curves by budget.")
    ] = "plan",
    changed: PlanSettings = None,
    allow_large_deltas: AllowLargeDeltas = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file, which must not exist.")] = None,
    as_json: AsJson = False,
    *,
    drawn: AccountOptions,
) -> None:
    """Plan sampling rates, clipping thresholds and noise for individual budgets."""
    _validate.one_of(VIEWS, show=show)
    if out is not None and show in ("variants", "curves"):
        raise InvalidArgumentError(f"out={str(out)!r}: --show {show} makes no plan to write; leave it out")
    check_new_file(out)
    rooms = whole = None
    if drawn.account is None:
        table = replace(_owner_table(epsilon, sizes, delta, owners, curve=show == "curves"), unit=unit)
    else:
        table, rooms, whole = _accounts(drawn.account, drawn.collection, drawn.share)
    changes = settings(changed, PLAN_SETTINGS)
    if show == "curves":
        with messages().status("planning curves"):
            curves = budget_curves(table, steps, changes.get("accountant", "pld"))
        _print(curves, as_json, curve_tables)
        return
    if noise_scale is not None and show == "variants":
        raise InvalidArgumentError(
            f"--noise-scale={noise_scale:g}: for all variants give --batch and --threshold instead"
        )
    if batch is None and noise_scale is None:
        raise InvalidArgumentError("--batch: give the expected batch size, or the noise scale with --noise-scale")
    if noise_scale is None or variant == "sample":
        threshold = 1.0 if threshold is None else threshold  # only its ratio to the noise matters to privacy

    def planned(chosen: str, within: Rooms | None = rooms) -> Plan:
        with messages().status(f"planning {chosen} for {len(table)} owners"):
            config = PlanConfig(
                steps=steps,
                variant=chosen,
                expected_batch_size=batch,
                clipping_threshold=threshold,
                noise_scale=noise_scale,
                allow_large_deltas=allow_large_deltas,
            )
            return make_plan(table, config.changed(changes), rooms=within)

    if show == "variants":
        _print(compare_variants(planned), as_json, comparison_tables)
        return
    plan = planned(variant)
    if out is not None:
        write_whole(out, plan.to_json() + "\n")
    described = describe_plan(plan, show == "profile", everyone=as_json)
    if whole is not None:
        noise = planned(variant, whole).at(0).noise_scale, planned(variant, None).at(0).noise_scale
        described["filter"] = {"noise_by_filter": noise[0], "noise_by_pld": noise[1]}
        described["gains"] = ""  # what holds owners back is what is left in their accounts
    _print(described, as_json, plan_tables)


def _accounts(url: str, collection: str | None, share: float) -> tuple[OwnerTable, Rooms, Rooms]:
    """The owners of a collection with their budgets, what is left to each, and what was there in the beginning."""
    from inosgd.accounts.book import Accounts

    with Accounts.open(url) as book:
        table = book.table(collection)
        return table, book.left(collection, table, share=share), book.whole(collection, table)


def _owner_table(
    epsilon: str | None, sizes: str | None, delta: float, owners: Path | None, *, curve: bool
) -> OwnerTable:
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


def _print(value: dict[str, Any], as_json: bool, tables: Callable[[dict[str, Any]], list[Table | str]]) -> None:
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
