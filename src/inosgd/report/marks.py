"""Marks: the parts that charts are put together from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from inosgd._extras import needs
from inosgd.analysis.differences import FEWEST_PAIRS
from inosgd.report.material import Material
from inosgd.report.tables import Table

with needs("report"):
    import altair as alt

SHOWN_METHOD = "indexof(shown_methods, datum.method) >= 0"
SHOWN_OWNER = "indexof(shown_owners, datum.owner) >= 0"
IN_PANEL = "indexof(panel_owners, datum.owner) >= 0"
"""What the switches of a page leave to be seen; all three are parameters of every specification."""

MOST_PANELS = 12
"""Small multiples of more than this are no longer looked at one by one: owners in between are left to the switches."""

MOST_BARS = 24
"""With more owners than this, a chart has a point per owner against its budget in place of a line of text each."""

MOST_IN_LEGEND = 6
"""Of more budgets than this a legend shows some, evenly spaced."""

STEP = alt.X("step:Q", title="step", axis=alt.Axis(tickCount=4, tickMinStep=1, format="d", labelFlush=True))
EPSILON = alt.X(
    "epsilon:Q",
    title="budget ε",
    scale=alt.Scale(zero=False, padding=14),
    axis=alt.Axis(format=".4~r", tickCount=8, labelOverlap=True),
)
AS_IT_STANDS = ".12~r"
"""The format of numbers that were rounded before, to the private side, and must not be rounded again."""

STRICTEST_FIRST = alt.EncodingSortField(field="epsilon", op="min", order="ascending")

PANEL_SPACING = {"row": 34, "column": 16}
OWN_AXES_SPACING = {"row": 64, "column": 58}
"""Between small multiples; rows leave room for the titles of the next."""

Item = TypeVar("Item")

Chart = Any
"""An Altair chart of any kind; its classes share no type that says so."""


def zero_line() -> Chart:
    """One line at 0."""
    return alt.Chart(alt.InlineData(values=[{}])).mark_rule(style="limit").encode(y=alt.datum(0))


def named(table: str) -> alt.NamedData:
    """The data of a chart: a table that the specification carries."""
    return alt.NamedData(name=table)


def method_colour(material: Material) -> alt.Color:
    """The colour of a row; a page shows the legend as its switches."""
    legend = alt.Legend(title=None, orient="top", columns=3, columnPadding=24, symbolOpacity=1, symbolSize=70)
    return alt.Color("method:N", scale=alt.Scale(domain=list(material.main)), legend=legend)


def method_shape(material: Material) -> alt.Shape:
    """The shape of a row's points, for those who cannot go by colour."""
    shapes = ["circle", "triangle-up", "square", "diamond", "cross", "triangle-down"]
    scale = alt.Scale(domain=list(material.main), range=[shapes[n % 6] for n in range(len(material.main))])
    return alt.Shape("method:N", scale=scale, legend=None)


def budget_colour(material: Material) -> alt.Color:
    """Owners by their budgets, from the strictest to the most liberal; a legend of the budgets that there are."""
    budgets = sorted({owner.epsilon for owner in material.owners})
    legend = alt.Legend(orient="top", values=evenly(budgets, MOST_IN_LEGEND), format=".4~r", symbolOpacity=1)
    return alt.Color("epsilon:Q", title="budget ε", legend=legend)


LEAST_SPAN = 0.2
"""An axis of scores spans at least so much: 20 points of accuracy. Noise is not magnified to the height of a chart."""


def spanning(
    values: Iterable[float | None], lowest: float, highest: float | None, least: float = LEAST_SPAN
) -> list[float]:
    """The ends of an axis that shows all ``values``, spans at least ``least``, and stays within what there can be.

    >>> spanning([0.91, 0.92], 0.0, 1.0), spanning([0.99, 1.0], 0.0, 1.0), spanning([0.2, 0.9], 0.0, 1.0)
    ([0.8, 1.0], [0.8, 1.0], [0.2, 0.9])
    """
    known = [value for value in values if value is not None]
    low, high = min(known, default=lowest), max(known, default=lowest)
    if high - low < least:
        low = max(lowest, (low + high - least) / 2)
        low = low if highest is None else min(low, max(lowest, highest - least))
        high = low + least
    return [round(low, 6), round(high, 6)]


def banded(
    material: Material, field: str, title: str, number: str, also: Sequence[alt.Tooltip], domain: Sequence[float]
) -> Chart:
    """A line per method with a band of one standard deviation over seeds, and numbers under the pointer."""
    colour = method_colour(material)
    axis = alt.Axis(format=_axis(number), tickCount=4)
    scale = alt.Scale(domain=list(domain), zero=False, nice=False, padding=8)
    value = alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)
    base = alt.Chart().encode(x=STEP, color=colour)
    band = base.mark_area(opacity=0.16).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    line = base.mark_line().encode(y=value)
    shown = [alt.Tooltip("method:N"), *also, alt.Tooltip("step:Q"), *spread(field, title, number, material)]
    points = base.mark_point(size=90, filled=True, opacity=0).encode(y=value, tooltip=shown)
    return alt.layer(band, line, points)


def with_band(chart: Chart, field: str, lowest: float, highest: float | None = None) -> Chart:
    """The chart with the two edges of the band, which do not go beyond what the field can be."""
    high = f"datum.{field} + datum.{field}_sd"
    return chart.transform_calculate(
        low=f"max({lowest:g}, datum.{field} - datum.{field}_sd)",
        high=high if highest is None else f"min({highest:g}, {high})",
    )


def spread(field: str, title: str, number: str, material: Material) -> list[alt.Tooltip]:
    """A mean under the pointer, with its standard deviation if seeds are enough for one."""
    mean = [alt.Tooltip(f"{field}:Q", title=title, format=number)]
    if material.seeds < FEWEST_PAIRS:
        return mean
    return [*mean, alt.Tooltip(f"{field}_sd:Q", title="± over seeds", format=number.lstrip("+"))]


def _axis(number: str) -> str:
    return "~%" if number.endswith("%") else ".3~r"


def owner_tooltips() -> list[alt.Tooltip]:
    """Who it is and what they allow."""
    return [alt.Tooltip("owner:N"), alt.Tooltip("epsilon:Q", title="budget ε", format=AS_IT_STANDS)]


def panel_owners(material: Material) -> list[str]:
    """The owners with a panel of their own: all, or so many that are evenly spaced from the strictest on."""
    names = [owner.name for owner in material.owners]
    return evenly(names)


def evenly(names: Sequence[Item], most: int = MOST_PANELS) -> list[Item]:
    """At most so many of the names, evenly spaced, the first and the last among them.

    >>> evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    if len(names) <= most:
        return list(names)
    return [names[round(index * (len(names) - 1) / (most - 1))] for index in range(most)]


def full_rows(panels: int, most: int = 5) -> int:
    """How many columns leave no gap in the last row, if nearly so many as there may be do.

    >>> full_rows(10), full_rows(12), full_rows(3), full_rows(7)
    (5, 4, 3, 5)
    """
    columns = min(most, max(panels, 1))
    return next((each for each in (columns, columns - 1, columns - 2) if each > 1 and panels % each == 0), columns)


def distinct(table: Table, column: str) -> list[Any]:
    """The values of a column, each once, as they first come."""
    return list(dict.fromkeys(table[column]))
