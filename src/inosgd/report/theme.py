"""Theme: colours that people who see colours differently can tell apart, and the look of all charts.

Okabe and Ito's palette on light ground, a lighter set of the same hues on dark ground. The paper's three methods and
the fair plans always have the same colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
FIGURE_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"

ASSIGNED = {"ino-sgd": "blue", "idp-sgd": "vermilion", "dp-sgd": "grey", "ino-sgd-fair": "green"}
OTHERS = ("green", "purple", "amber", "sky", "ink", "blue", "vermilion", "grey")


@dataclass(frozen=True)
class Look:
    """Colours of one ground."""

    name: str
    ground: str
    text: str
    faint: str
    grid: str
    colours: dict[str, str]
    ramp: tuple[str, ...]


LIGHT = Look(
    "light",
    ground="#ffffff",
    text="#1f2933",
    faint="#647282",
    grid="#e6eaee",
    colours={
        "blue": "#0072b2",
        "vermilion": "#d55e00",
        "grey": "#7b8794",
        "green": "#009e73",
        "purple": "#b0558f",
        "amber": "#c98a00",
        "sky": "#3a9bd0",
        "ink": "#1f2933",
    },
    ramp=("#3b1c6b", "#31688e", "#1f9e89", "#8fbf2f"),
)
DARK = Look(
    "dark",
    ground="#12171d",
    text="#e6eaee",
    faint="#9aa8b7",
    grid="#2a343f",
    colours={
        "blue": "#4fb0f0",
        "vermilion": "#ff8b4a",
        "grey": "#a9b4c0",
        "green": "#35d0a5",
        "purple": "#e79ac8",
        "amber": "#f2c14e",
        "sky": "#9ad8ff",
        "ink": "#e6eaee",
    },
    ramp=("#a58bff", "#5aa9e6", "#3fd0ab", "#f0e05a"),
)


def colours(labels: Sequence[str], look: Look) -> list[str]:
    """One colour for each label, in order; those that are left are handed out before any is used twice."""
    taken = {ASSIGNED[label] for label in labels if label in ASSIGNED}
    free = [name for name in OTHERS if name not in taken] or list(OTHERS)
    chosen, next_free = [], 0
    for label in labels:
        if label in ASSIGNED:
            chosen.append(look.colours[ASSIGNED[label]])
        else:
            chosen.append(look.colours[free[next_free % len(free)]])
            next_free += 1
    return chosen


def chart_config(labels: Sequence[str], look: Look, *, font: str = FONT) -> dict[str, Any]:
    """What Vega-Lite calls a configuration: nothing in it depends on the data but the colours of the methods."""
    return {
        "background": "transparent",
        "font": font,
        "range": {"category": colours(labels, look), "ramp": list(look.ramp)},
        "view": {"stroke": None},
        "axis": {
            "labelColor": look.faint,
            "titleColor": look.faint,
            "titleFontWeight": "normal",
            "titleFontSize": 12,
            "labelFontSize": 11,
            "gridColor": look.grid,
            "domainColor": look.grid,
            "tickColor": look.grid,
            "labelLimit": 150,
            "titlePadding": 8,
        },
        "axisX": {"grid": False, "tickSize": 4},
        "axisY": {"domain": False, "ticks": False, "labelPadding": 6},
        "header": {
            "labelColor": look.text,
            "labelFontSize": 12,
            "labelFontWeight": 600,
            "labelLimit": 230,
            "labelPadding": 4,
            "title": None,
        },
        "legend": {"labelColor": look.text, "titleColor": look.faint, "titleFontWeight": "normal", "labelLimit": 260},
        "text": {"color": look.text, "fontSize": 11},
        "rule": {"color": look.faint},
        "line": {"strokeWidth": 2, "strokeJoin": "round"},
        "style": {
            "limit": {"color": look.faint, "strokeDash": [4, 3]},
            "shadow": {"color": look.grid},
            "halo": {"color": look.ground, "stroke": look.ground, "strokeWidth": 4, "strokeJoin": "round"},
        },
    }
