"""Charts of why: what plans ask of owners, weights, the theorem's condition, and audits."""

from __future__ import annotations

from collections.abc import Mapping

from inosgd._extras import needs
from inosgd.report.marks import (
    OWN_AXES_SPACING,
    PANEL_SPACING,
    SHOWN_METHOD,
    SHOWN_OWNER,
    STEP,
    Chart,
    budget_colour,
    method_colour,
    method_shape,
    named,
    owner_tooltips,
    zero_line,
)
from inosgd.report.material import Material
from inosgd.report.tables import QUANTITIES, Table

with needs("report"):
    import altair as alt

Tables = Mapping[str, Table]

SHOWN = f"{SHOWN_METHOD} && {SHOWN_OWNER}"


def terms_chart(material: Material, tables: Tables) -> Chart:
    """A panel each for rates, thresholds and signals, against budgets."""
    few = len(set(tables["terms"]["owner"])) <= 24
    base = alt.Chart().encode(
        x=alt.X("epsilon:Q", title="budget ε", scale=alt.Scale(padding=10), axis=alt.Axis(format=".4~r", tickCount=4)),
        y=alt.Y(
            "value:Q", title=None, scale=alt.Scale(nice=False, padding=10), axis=alt.Axis(tickCount=5, format=".3~r")
        ),
        color=method_colour(material),
    )
    tooltips = [alt.Tooltip("method:N"), *owner_tooltips(), alt.Tooltip("quantity:N")]
    points = base.mark_point(filled=True, size=64 if few else 30, opacity=0.9).encode(
        shape=method_shape(material), tooltip=[*tooltips, alt.Tooltip("value:Q", format=".3~r")]
    )
    layers = alt.layer(base.mark_line(opacity=0.7), points, data=named("terms")).properties(width=230, height=200)
    facet = alt.Facet("quantity:N", sort=list(QUANTITIES.values()), title=None)
    panels = layers.facet(facet=facet, columns=3, spacing=OWN_AXES_SPACING, bounds="flush")
    return panels.resolve_scale(y="independent").transform_filter(SHOWN)


def condition_chart(material: Material, _: Tables) -> Chart:
    """The theorem's left side for the strictest owner's loss, against the most liberal owner."""
    base = alt.Chart(named("condition")).transform_filter(SHOWN_METHOD)
    left_side = alt.Y("left_side:Q", title="1 + cos(angle) × ratio of signals", axis=alt.Axis(tickCount=6))
    base = base.encode(x=STEP, color=method_colour(material))
    tooltips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("step:Q"),
        alt.Tooltip("left_side:Q", title="left side", format="+.2f"),
        alt.Tooltip("angle:Q", title="angle in degrees", format=".0f"),
        alt.Tooltip("signal_ratio:Q", title="ratio of signals", format=".1f"),
        alt.Tooltip("owner:N", title="loss of"),
        alt.Tooltip("other:N", title="against"),
    ]
    lines = base.mark_line().encode(y=left_side)
    points = base.mark_point(size=90, filled=True, opacity=0).encode(y=left_side, tooltip=tooltips)
    return alt.layer(zero_line(), lines, points).properties(width=760, height=280)


def weights_chart(material: Material, _: Tables) -> Chart:
    """A panel per method, a line per owner."""
    weight = alt.Y("weight:Q", title="mean weight", scale=alt.Scale(domain=[0, 1.05], nice=False))
    base = alt.Chart().encode(x=STEP, y=weight, color=budget_colour(material), detail="owner:N")
    tooltips = [
        alt.Tooltip("method:N"),
        *owner_tooltips(),
        alt.Tooltip("step:Q"),
        alt.Tooltip("weight:Q", format=".2f"),
    ]
    points = base.mark_point(size=90, filled=True, opacity=0).encode(tooltip=tooltips)
    layers = alt.layer(base.mark_line(strokeWidth=1.6), points, data=named("weights"))
    return _by_method(layers)


def roc_chart(material: Material, _: Tables) -> Chart:
    """A panel per method, a curve per owner, dashed the highest that its epsilon allows, and the line of guessing."""
    share = alt.Axis(format=".0%", tickCount=4)
    base = alt.Chart().encode(
        x=alt.X("false_positive_rate:Q", title="false positives", axis=share),
        y=alt.Y("true_positive_rate:Q", title="true positives", axis=share),
        detail="owner:N",
    )
    tooltips = [
        alt.Tooltip("method:N"),
        *owner_tooltips(),
        alt.Tooltip("false_positive_rate:Q", title="false positives", format=".1%"),
        alt.Tooltip("true_positive_rate:Q", title="true positives", format=".1%"),
        alt.Tooltip("highest:Q", title="at most, by the accounted epsilon", format=".1%"),
        alt.Tooltip("area:Q", title="area under the curve", format=".3f"),
    ]
    guess = alt.Chart().mark_line(style="limit", strokeWidth=1.5)
    guess = guess.encode(x="false_positive_rate:Q", y=alt.Y("false_positive_rate:Q", title="true positives"))
    lines = base.mark_line(strokeWidth=1.6).encode(color=budget_colour(material))
    highest = base.mark_line(strokeWidth=1.2, strokeDash=[4, 3]).encode(
        y=alt.Y("highest:Q", title="true positives"), color=budget_colour(material)
    )
    points = base.mark_point(size=60, filled=True, opacity=0).encode(tooltip=tooltips)
    return _by_method(alt.layer(guess, highest, lines, points, data=named("roc")))


def _by_method(layers: Chart) -> Chart:
    panels = layers.properties(width=240, height=200).facet(
        facet=alt.Facet("method:N", title=None), columns=3, spacing=PANEL_SPACING, bounds="flush"
    )
    return panels.transform_filter(SHOWN)
