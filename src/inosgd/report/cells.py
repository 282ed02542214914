"""Cells: what a report says, in a cell of a notebook, drawn by the charts of the page.

    from inosgd.report import cell, read_runs

    cell(read_runs([Path("runs/compare-digits")]), "owners", "progress")   # verdict, answers, scores, two charts
    cell(plan)                                                             # budgets and signals of a plan

Charts are SVG: they need neither a network nor an extension of the notebook.
"""

from __future__ import annotations

from dataclasses import dataclass

from inosgd._extras import require
from inosgd.plan import Plan
from inosgd.report.material import Material, MethodRow, OwnerFacts, by_budget

OF_RUNS, OF_PLANS = ("owners",), ("budgets", "terms")
"""Which charts are shown where none are named."""


@dataclass(frozen=True)
class Cell:
    """What is shown: as HTML in a notebook, as text elsewhere."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def cell(of: Material | Plan, *charts: str) -> Cell:
    """What a report says about runs or about a plan.

    Args:
        of: The material of runs, as `inosgd.report.read_runs` gives it, or a plan.
        charts: Names of charts, see docs/reading-a-report.md; a few if none are named.
    """
    require("report", "altair", "vl_convert")
    from inosgd.report.figures import figure_files
    from inosgd.report.sections import cell_summary

    material = plan_material(of) if isinstance(of, Plan) else of
    names = charts or (OF_PLANS if isinstance(of, Plan) else OF_RUNS if material.evaluated else ("budgets",))
    drawn = "".join(content.decode() for content in figure_files(material, ("svg",), names).values())
    if isinstance(of, Plan):
        return Cell(repr(of), of._repr_html_() + drawn)
    told = "\n".join([material.verdict, *(f"{each.question} {each.text}" for each in material.answers)])
    return Cell(told, cell_summary(material) + drawn)


def plan_material(plan: Plan) -> Material:
    """A plan that nothing was trained by, as material for charts."""
    from inosgd.report.trainings import terms_of

    table = plan.table
    spent = dict(zip(table.names, plan.spent.tolist(), strict=True))
    row = MethodRow(f"{plan.variant} plan", plan.variant, spent=spent, terms=terms_of(plan))
    owners = by_budget([OwnerFacts(name, budget.epsilon, budget.delta, size) for name, budget, size in table])
    return Material("train", row.label, "", owners, (row,), (row.label,), unit=table.unit)
