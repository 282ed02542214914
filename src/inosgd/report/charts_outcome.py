"""Charts of what training came to: for each owner, and for the balance between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inosgd._extras import needs
from inosgd.report.marks import (
    AS_IT_STANDS,
    EPSILON,
    LEAST_SPAN,
    MOST_BARS,
    SHOWN_METHOD,
    SHOWN_OWNER,
    STRICTEST_FIRST,
    Chart,
    distinct,
    method_colour,
    method_shape,
    named,
    owner_tooltips,
    spanning,
    spread,
    zero_line,
)
from inosgd.report.material import Material
from inosgd.report.tables import Table, rows_of, spread_name

with needs("report"):
    import altair as alt

Tables = Mapping[str, Table]

SHOWN = f"{SHOWN_METHOD} && {SHOWN_OWNER}"
WHO = alt.Y("who:N", title=None, sort=STRICTEST_FIRST, axis=alt.Axis(labelLimit=170, grid=False))


def ends_chart(material: Material, tables: Tables) -> Chart:
    """The score of every owner by every method: a line of marks per owner, or points against budgets if many."""
    many = len(distinct(tables["ends"], "owner")) > MOST_BARS
    score = material.score
    base = alt.Chart(named("ends")).transform_filter(SHOWN).encode(color=method_colour(material))
    tooltips = [
        alt.Tooltip("method:N"),
        *owner_tooltips(),
        alt.Tooltip("score:Q", title=score.name, format=score.form),
        alt.Tooltip("low:Q", title=f"{spread_name(material)}, from", format=score.form),
        alt.Tooltip("high:Q", title="to", format=score.form),
        alt.Tooltip("held_out:Q", title="held-out examples", format=","),
        alt.Tooltip("loss:Q", title="loss", format=".2f"),
    ]
    columns = (tables["ends"][name] for name in ("score", "low", "high"))
    domain = spanning((value for column in columns for value in column), score.lowest, 1.0)
    scale = alt.Scale(domain=domain, zero=False, nice=False, padding=10)  # no tick beyond 1
    if many:
        base = base.encode(x=EPSILON)
        upward = alt.Y("score:Q", title=score.name, scale=scale, axis=alt.Axis(format=score.axis, tickCount=5))
        points = base.mark_point(filled=True, size=46, opacity=0.75)
        return points.encode(y=upward, shape=method_shape(material), tooltip=tooltips).properties(width=760, height=340)
    base = base.encode(y=WHO, yOffset=_beside(material))
    title = f"{score.name} at the end"
    axis = alt.Axis(format=score.axis, grid=True, tickCount=8, labelFlush=16)
    across = alt.X("score:Q", title=title, scale=scale, axis=axis)
    rules = base.mark_rule(strokeWidth=2, opacity=0.4).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    rules = rules.encode(color=method_colour(material))
    points = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=across, shape=method_shape(material), tooltip=tooltips
    )
    return _tall(alt.layer(rules, points), material)


def spending_chart(material: Material, tables: Tables) -> Chart:
    """Bars within budgets, or points below the limit if owners are many."""
    tooltips = [
        alt.Tooltip("method:N"),
        *owner_tooltips(),
        alt.Tooltip("spent:Q", title="spent ε, rounded up", format=AS_IT_STANDS),
        alt.Tooltip("share:Q", title="share of the budget, rounded up", format=".12~p"),
    ]
    base = alt.Chart(named("spending")).transform_filter(SHOWN)
    if len(distinct(tables["spending"], "owner")) > MOST_BARS:
        spent = alt.Y("spent:Q", title="spent ε")
        limit = base.mark_line(style="limit", strokeWidth=1.5).encode(x=EPSILON, y=alt.Y("epsilon:Q", title="spent ε"))
        points = base.mark_point(filled=True, size=46, opacity=0.8).encode(
            x=EPSILON, y=spent, color=method_colour(material), shape=method_shape(material), tooltip=tooltips
        )
        return alt.layer(limit, points).properties(width=760, height=320)
    base = base.encode(y=WHO, yOffset=_beside(material))
    axis = alt.Axis(grid=False, tickCount=6)
    allowed = base.mark_bar(style="shadow").encode(
        x=alt.X("epsilon:Q", title=f"ε of each single {material.unit}", axis=axis)
    )
    bars = base.mark_bar().encode(x="spent:Q", color=method_colour(material), tooltip=tooltips)
    limit = base.mark_tick(thickness=2, style="limit", strokeDash=[], orient="vertical").encode(x="epsilon:Q")
    return _tall(alt.layer(allowed, bars, limit), material)


def _tall(chart: Chart, material: Material) -> Chart:
    """The chart with a line for each owner, as high as its marks beside each other; a page keeps to it."""
    mark = 15 if len(material.main) * len(material.owners) <= 20 else 9
    per_owner = mark * len(material.main) + 14
    return chart.properties(width=760, height=per_owner * len(material.owners), usermeta={"per_owner": per_owner})


def _beside(material: Material) -> alt.YOffset:
    return alt.YOffset("method:N", sort=list(material.main), scale=alt.Scale(domain=list(material.main), padding=0.3))


def change_chart(material: Material, tables: Tables) -> Chart:
    """A mark per owner and method, with the regression over all owners and seeds."""
    points = len(tables["changes"]["owner"])
    base = alt.Chart(named("changes")).transform_filter(SHOWN).encode(x=EPSILON, color=method_colour(material))
    base = base.transform_calculate(low="datum.change - datum.change_sd", high="datum.change + datum.change_sd")
    score = material.score
    title = f"{score.name} minus idp-sgd's"
    axis = alt.Axis(format="+~%" if score.is_share else "+.3~r", tickCount=6)
    ends = [
        value + sign * (sd or 0.0)
        for value, sd in zip(tables["changes"]["change"], tables["changes"]["change_sd"], strict=True)
        for sign in (-1, 1)
    ]
    domain = spanning([0.0, *ends], -2.0, None, LEAST_SPAN / 2)
    change = alt.Y("change:Q", title=title, axis=axis, scale=alt.Scale(domain=domain, nice=True))
    tooltips = [alt.Tooltip("method:N"), *owner_tooltips(), *spread("change", "change", f"+{score.form}", material)]
    bars = base.mark_rule(strokeWidth=2, opacity=0.35 if points <= 60 else 0.12).encode(
        y=alt.Y("low:Q", title=title), y2="high:Q"
    )
    bars = bars.encode(color=method_colour(material))
    marks = base.mark_point(filled=True, size=70 if points <= 60 else 36, opacity=0.9).encode(
        y=change, shape=method_shape(material), tooltip=tooltips
    )
    lines = alt.Chart(named("lines")).transform_filter(SHOWN_METHOD).mark_line(strokeWidth=2.5, opacity=0.8)
    lines = lines.encode(
        x=EPSILON,
        y=change,
        color=method_colour(material),
        tooltip=[
            alt.Tooltip("method:N"),
            alt.Tooltip("slope:Q", title="change per unit of ε", format="+.2%" if score.is_share else "+.4f"),
            alt.Tooltip("correlation:Q", format=".2f"),
            alt.Tooltip("p:Q", format=".2~r"),
        ],
    )
    return alt.layer(zero_line(), bars, lines, marks).properties(width=760, height=320)


def _closer(values: Sequence[float], lowest: float = 0.0, highest: float | None = None) -> list[float]:
    """The ends of an axis of the Pareto chart: half the usual span, since points are compared and not read off."""
    return spanning(values, lowest, highest, LEAST_SPAN / 2)


def pareto_chart(material: Material, tables: Tables) -> Chart:
    """A point per row; those that nothing is better than are joined."""
    score = material.score
    shown = f"!datum.far && ({SHOWN_METHOD} || !datum.main)"
    base = alt.Chart(named("pareto")).transform_filter(shown)
    drawn = [row for row in rows_of(tables["pareto"]) if not row["far"]]
    across = alt.X(
        "imbalance:Q",
        title=["imbalance: standard deviation", "of the owners' scores (less is better)"],
        scale=alt.Scale(domain=_closer([row["imbalance"] for row in drawn]), zero=False, padding=34),
        axis=alt.Axis(format=score.axis, tickCount=6),
    )
    upward = alt.Y(
        "overall:Q",
        title=f"overall {score.name}",
        scale=alt.Scale(domain=_closer([row["overall"] for row in drawn], score.lowest, 1.0), zero=False, padding=18),
        axis=alt.Axis(format=score.axis, tickCount=6),
    )
    tooltips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("plan:N"),
        *spread("overall", "overall", score.form, material),
        *spread("imbalance", "imbalance", score.form, material),
        *spread("worst", "worst owner", score.form, material),
    ]
    base = base.encode(x=across, y=upward)
    front = base.transform_filter("datum.front").mark_line(style="limit", strokeWidth=1.5)
    front = front.encode(order=alt.Order("imbalance:Q"))
    others = base.transform_filter("!datum.main").mark_point(style="limit", strokeDash=[], size=34, opacity=0.8)
    main = base.transform_filter("datum.main")
    marks = main.mark_point(filled=True, size=130, opacity=1).encode(
        color=method_colour(material), shape=method_shape(material), tooltip=tooltips
    )
    names: dict[str, Any] = {
        "align": alt.expr("datum.at_right ? 'right' : 'left'"),
        "dx": alt.expr("datum.at_right ? -10 : 10"),
        "dy": alt.expr("datum.above ? -9 : 11"),
    }
    behind = main.mark_text(style="halo", **names).encode(text="name:N")
    front_names = main.mark_text(**names).encode(text="name:N", color=method_colour(material))
    layers = (front, behind, others.encode(tooltip=tooltips), marks, front_names)  # no point is covered
    return alt.layer(*layers).properties(width=760, height=360)
