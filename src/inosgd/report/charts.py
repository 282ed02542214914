"""Charts: what each shows, and how to read it. docs/reading-a-report.md has the figures of the paper beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inosgd.analysis.differences import FEWEST_PAIRS
from inosgd.analysis.intervals import FEW
from inosgd.report.charts_outcome import change_chart, ends_chart, pareto_chart, spending_chart
from inosgd.report.charts_theory import condition_chart, roc_chart, terms_chart, weights_chart
from inosgd.report.charts_training import classes_chart, loss_chart, progress_chart, score_chart
from inosgd.report.marks import Chart, panel_owners
from inosgd.report.material import Material
from inosgd.report.tables import Table, has_few, rows_of

Tables = Mapping[str, Table]


@dataclass(frozen=True)
class Panels:
    """How a page fits small multiples into its width.

    Attributes:
        columns: At most so many beside each other.
        narrowest: No panel is narrower than this, in pixels, while there can be fewer columns.
        own_axes: Whether every panel has a vertical axis of its own.
        by_owner: Whether there is a panel for each owner that is switched on.
    """

    columns: int
    narrowest: int
    own_axes: bool = False
    by_owner: bool = False


@dataclass(frozen=True)
class ChartEntry:
    """One chart of the page.

    Attributes:
        name: What its figure files are called.
        title: What it shows; ``{score}`` stands for the name of the score.
        reading: How to read it; ``{spread}`` and ``{bands}`` stand for what lines beside marks and bands are.
        table: The table without which it is left out.
        build: From the material and its tables to an Altair chart.
        panels: Given for small multiples.
        also: Other tables that it draws from.
    """

    name: str
    title: str
    reading: str
    table: str
    build: Callable[[Material, Tables], Chart]
    panels: Panels | None = None
    also: tuple[str, ...] = ()


CHARTS = (
    ChartEntry(
        "owners",
        "Results by owner",
        "Each mark is an owner's score by one method on held-out examples of its kind, with {spread}; further right, "
        "or higher, is better, and marks close together are balance. Marks whose lines overlap are not told apart.",
        "ends",
        ends_chart,
    ),
    ChartEntry(
        "score",
        "Each owner while training: {score}",
        "One panel per owner, the strictest first: a line that climbs late or stays below shows an owner whose data "
        "are learnt later or less.{bands}",
        "curves",
        score_chart,
        Panels(5, 140, by_owner=True),
    ),
    ChartEntry(
        "loss",
        "Loss of each owner while training",
        "The same panels for the mean held-out loss: a line that rises before it falls is an owner whose data others "
        "drown out at first, and a line that is still falling at the end would have used a larger budget.",
        "curves",
        loss_chart,
        Panels(5, 140, by_owner=True),
    ),
    ChartEntry(
        "progress",
        "Overall and worst owner over time",
        "All held-out examples, the owner with the lowest score at each step, and the mean of the worse-off half: a "
        "method is worth having if the second rises and the first does not fall.",
        "progress",
        progress_chart,
        Panels(3, 210),
    ),
    ChartEntry(
        "budgets",
        "Budget and spent",
        "What each owner allows for each single example, and how much of it the whole training has spent, rounded up; "
        "what reaches the limit uses the budget fully, and nothing may pass it. Methods with the same plan "
        "spend the same.",
        "spending",
        spending_chart,
    ),
    ChartEntry(
        "change",
        "Change in {score} against budget",
        "Each mark is one owner's score minus what idp-sgd gives it with the same seeds; a line that falls to the "
        "right says that the stricter an owner is, the more it gains.",
        "changes",
        change_chart,
        also=("lines",),
    ),
    ChartEntry(
        "pareto",
        "Overall {score} against imbalance",
        "Every method and plan is a point, the small hollow ones those that no other chart shows; higher is "
        "better, further left is more balanced, and nothing is better in both than a point on the dashed line.",
        "pareto",
        pareto_chart,
    ),
    ChartEntry(
        "terms",
        "Rates, thresholds and signals",
        "What the plan asks of each owner: how often an example is drawn, how long its gradient may be, and how large "
        "the owner's signal is against the noise; a steep line is the imbalance that budgets bring about. Methods with "
        "the same plan lie on each other.",
        "terms",
        terms_chart,
        Panels(3, 210, own_axes=True),
    ),
    ChartEntry(
        "classes",
        "Classes within owners",
        "One panel per class, with its owner where that is known: classes of one owner may be learnt at very different "
        "times although they have the same budget.",
        "classes",
        classes_chart,
        Panels(5, 130),
    ),
    ChartEntry(
        "weights",
        "Importance weights by owner",
        "The mean weight of each owner's examples: 1 is kept whole; a lower line is an owner whose losses are so low "
        "that the tail takes importance away from it. On held-out examples, for one seed.",
        "weights",
        weights_chart,
        Panels(3, 210),
    ),
    ChartEntry(
        "condition",
        "Can the loss of the strictest owner fall?",
        "Below 0 the most liberal owner pulls so hard that the strictest owner's loss may rise; above, both can fall. "
        "Measured on held-out examples, for one seed.",
        "condition",
        condition_chart,
    ),
    ChartEntry(
        "roc",
        "Membership audit",
        "How well an attack tells members from others, owner by owner: along the diagonal it guesses, and the further "
        "above, the more the model gives away. Dashed: the highest that any attack could reach at the owner's epsilon.",
        "roc",
        roc_chart,
        Panels(3, 210),
    ),
)


def reading_of(entry: ChartEntry, material: Material) -> str:
    """How to read a chart of ``material``."""
    enough = material.seeds >= FEWEST_PAIRS
    spread = (
        f"one standard deviation over {material.seeds} seeds"
        if enough
        else (
            "its confidence interval (level 0.95) by the number of held-out examples"
            + (" of the first seed" if material.seeds > 1 else "")
        )
    )
    bands = f" Bands are {spread}." if enough else ""
    words = entry.reading.replace("{spread}", spread).replace("{bands}", bands)
    marked = f" * fewer than {FEW} held-out examples." if entry.name in MARKED and has_few(material) else ""
    return words.replace("single example", f"single {material.unit}") + marked


MARKED = ("owners", "score", "loss")
"""Charts in which owners with few held-out examples are marked."""


def available(tables: Tables) -> list[ChartEntry]:
    """The charts that there are numbers for."""
    return [entry for entry in CHARTS if entry.table in tables]


def specification(entry: ChartEntry, material: Material, tables: Tables, *, validate: bool = False) -> dict[str, Any]:
    """The Vega-Lite specification of a chart, without its data and its look.

    Tests compare it with the schema of Vega-Lite (``validate``); it takes a second that readers need not wait. Its
    parameters ``shown_methods``, ``shown_owners`` and ``panel_owners`` are the switches.
    """
    spec: dict[str, Any] = entry.build(material, tables).to_dict(validate=validate)
    spec.pop("config", None)
    switches = {
        "shown_methods": list(material.main),
        "shown_owners": [owner.name for owner in material.owners],
        "panel_owners": panel_owners(material),
    }
    spec["params"] = [*spec.get("params", []), *({"name": name, "value": value} for name, value in switches.items())]
    if entry.panels is not None:
        spec["usermeta"] = {**spec.get("usermeta", {}), "panels": entry.panels.__dict__}
    return spec


def with_data(spec: Mapping[str, Any], entry: ChartEntry, tables: Tables) -> dict[str, Any]:
    """The specification with the tables that it draws from, so that it stands on its own."""
    used = (entry.table, *entry.also)
    found = {name: rows_of(tables[name]) if name in tables else [] for name in used}
    return {**spec, "datasets": {**spec.get("datasets", {}), **found}}
