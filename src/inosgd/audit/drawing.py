"""ROC curves as a picture: what the attack found, the best that the claim allows, and guessing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.audit.claims import highest_curve
from inosgd.audit.membership import Attacked

_SIDE, _MARGIN, _GAP = 260, 56, 40
_LEAST = 1e-4
_FOUND, _HIGHEST, _BUDGET, _CHANCE = "#1f5fa8", "#b5342a", "#d9a09b", "#999999"

_LEGEND = (
    "blue: found; red: the most that the accounted profile allows; pale red: the most that the budget alone allows;",
    "grey: guessing. Computed from training data: not private.",
)


def roc_picture(found: Sequence[Attacked], title: str) -> str:
    """An SVG with two panels per owner: linear axes above, and logarithmic ones, where rare certainty shows, below."""
    width = 2 * _MARGIN + len(found) * (_SIDE + _GAP) - _GAP
    height = 2 * _MARGIN + 2 * _SIDE + _GAP + 34
    panels = "".join(
        _panel(each, _MARGIN + index * (_SIDE + _GAP), logarithmic=logarithmic)
        for index, each in enumerate(found)
        for logarithmic in (False, True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{_text(_MARGIN, 18, title, 'start', 13)}{panels}"
        f"{_text(_MARGIN, height - 24, _LEGEND[0], 'start')}{_text(_MARGIN, height - 10, _LEGEND[1], 'start')}"
        "</svg>\n"
    )


def _panel(each: Attacked, left: float, *, logarithmic: bool) -> str:
    top = _MARGIN + (_SIDE + _GAP if logarithmic else 0)
    rates, found = each.roc.thinned()
    highest = highest_curve(each.claim.profile, rates)
    allowed = highest_curve(each.claim.at_budget(), rates)
    curves = ((rates, _CHANCE), (allowed, _BUDGET), (highest, _HIGHEST), (found, _FOUND))
    place = _decades if logarithmic else _linear
    axis = f"{_LEAST:g} to 1, logarithmic" if logarithmic else "0 to 1"
    drawn = "".join(_curve(place(rates), place(heights), colour, left, top) for heights, colour in curves)
    return (
        f'<rect x="{left}" y="{top}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#444"/>'
        + drawn
        + ("" if logarithmic else _heading(each, left))
        + _text(left + _SIDE / 2, top + _SIDE + 16, f"false positive rate, {axis}", "middle")
        + f'<text transform="translate({left - 6} {top + _SIDE / 2}) rotate(-90)" text-anchor="middle">'
        f"true positive rate, {axis}</text>"
    )


def _heading(each: Attacked, left: float) -> str:
    name = f"{each.claim.name}: ε = {each.claim.epsilon:g}"
    areas = f"AUC {each.roc.auc:.3f}, at most {each.highest_auc:.3f}"
    return _text(left + _SIDE / 2, _MARGIN - 18, name, "middle") + _text(left + _SIDE / 2, _MARGIN - 5, areas, "middle")


def _linear(values: FloatArray) -> FloatArray:
    return values


def _decades(values: FloatArray) -> FloatArray:
    """Where rates lie between the smallest that is shown, at 0, and 1."""
    placed: FloatArray = 1 - np.log10(np.maximum(values, _LEAST)) / np.log10(_LEAST)
    return placed


def _curve(x: FloatArray, y: FloatArray, colour: str, left: float, top: float) -> str:
    across, down = left + _SIDE * x, top + _SIDE * (1 - y)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
