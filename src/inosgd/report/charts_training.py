"""Charts of what happens while a model is trained."""

from __future__ import annotations

from collections.abc import Mapping

from inosgd._extras import needs
from inosgd.report.marks import (
    IN_PANEL,
    PANEL_SPACING,
    SHOWN_METHOD,
    SHOWN_OWNER,
    STEP,
    STRICTEST_FIRST,
    Chart,
    banded,
    distinct,
    evenly,
    full_rows,
    method_colour,
    named,
    owner_tooltips,
    panel_owners,
    spanning,
    with_band,
)
from inosgd.report.material import Material
from inosgd.report.tables import MEASURES, Table

with needs("report"):
    import altair as alt

Tables = Mapping[str, Table]


def score_chart(material: Material, tables: Tables) -> Chart:
    """A panel of scores per owner."""
    score = material.score
    domain = _domain(tables["curves"], "score", score.lowest, 1.0)
    return with_band(_by_owner(material, "score", score.name, score.form, domain), "score", score.lowest, 1.0)


def loss_chart(material: Material, tables: Tables) -> Chart:
    """A panel of losses per owner."""
    domain = _domain(tables["curves"], "loss", 0.0, None)
    return with_band(_by_owner(material, "loss", "held-out loss", ".2f", domain), "loss", 0.0)


def _domain(table: Table, field: str, lowest: float, highest: float | None) -> list[float]:
    """The ends of an axis for a band; no wider than what its field can be."""
    edges = [
        value + sign * (sd or 0.0)
        for value, sd in zip(table[field], table[f"{field}_sd"], strict=True)
        if value is not None
        for sign in (-1, 1)
    ]
    inside = [max(lowest, each if highest is None else min(highest, each)) for each in edges]
    return spanning(inside, lowest, highest)


def _by_owner(material: Material, field: str, title: str, number: str, domain: list[float]) -> Chart:
    columns = full_rows(len(panel_owners(material)))
    width, height = {1: (440, 220), 2: (360, 200), 3: (250, 160)}.get(columns, (190, 130))
    layers = banded(material, field, title, number, owner_tooltips(), domain)
    layers = layers.properties(width=width, height=height, data=named("curves"))
    panels = layers.facet(
        facet=alt.Facet("who:N", sort=STRICTEST_FIRST, title=None),
        columns=columns,
        spacing=PANEL_SPACING,
        bounds="flush",
    )
    return panels.transform_filter(f"{SHOWN_METHOD} && {IN_PANEL}")


def progress_chart(material: Material, tables: Tables) -> Chart:
    """A panel each for all examples, the worst owner and the worse-off half."""
    score = material.score
    domain = _domain(tables["progress"], "value", score.lowest, 1.0)
    layers = banded(material, "value", score.name, score.form, [alt.Tooltip("measure:N")], domain)
    layers = layers.properties(width=270, height=200, data=named("progress"))
    facet = alt.Facet("measure:N", sort=list(MEASURES.values()), title=None)
    panels = layers.facet(facet=facet, columns=3, spacing=PANEL_SPACING, bounds="flush")
    return with_band(panels.transform_filter(SHOWN_METHOD), "value", score.lowest, 1.0)


def classes_chart(material: Material, tables: Tables) -> Chart:
    """A panel per class; of many classes some that are evenly spaced."""
    order = distinct(tables["classes"], "class")
    chosen = evenly(order, 20)
    base = alt.Chart().encode(
        x=STEP,
        y=alt.Y(
            "recall:Q", title="recall", scale=alt.Scale(nice=False, padding=8), axis=alt.Axis(format=".0%", tickCount=3)
        ),
        color=method_colour(material),
    )
    tooltips = [alt.Tooltip("method:N"), alt.Tooltip("class:N"), alt.Tooltip("step:Q")]
    numbers = alt.Tooltip("recall:Q", format=".1%")
    points = base.mark_point(size=90, filled=True, opacity=0).encode(tooltip=[*tooltips, numbers])
    layers = alt.layer(base.mark_line(), points, data=named("classes"))
    panels = layers.properties(width=150, height=90).facet(
        facet=alt.Facet("class:N", sort=chosen, title=None), columns=5, spacing=PANEL_SPACING, bounds="flush"
    )
    owned = f"(datum.owner == null || {SHOWN_OWNER})"
    return panels.transform_filter(f"{SHOWN_METHOD} && {owned}").transform_filter(
        alt.FieldOneOfPredicate(field="class", oneOf=chosen)
    )
