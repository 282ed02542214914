"""ROC curves as a picture: what the attack found, the best that the claim allows, and guessing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from inosgd._arrays import FloatArray
from inosgd.audit.claims import highest_curve
from inosgd.audit.membership import Attacked

_SIDE, _MARGIN, _GAP = 260, 56, 40
_FOUND, _HIGHEST, _BUDGET, _CHANCE = "#1f5fa8", "#b5342a", "#d9a09b", "#999999"

_LEGEND = (
    "blue: found; red: the most that the accounted profile allows; pale red: the most that the budget alone allows;",
    "grey: guessing. Computed from training data: not private.",
)


def roc_picture(found: Sequence[Attacked], title: str) -> str:
    """An SVG with one panel per owner, on linear axes."""
    width = 2 * _MARGIN + len(found) * (_SIDE + _GAP) - _GAP
    height = 2 * _MARGIN + _SIDE + 34
    panels = "".join(_panel(each, _MARGIN + index * (_SIDE + _GAP)) for index, each in enumerate(found))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{_text(_MARGIN, 18, title, 'start', 13)}{panels}"
        f"{_text(_MARGIN, height - 24, _LEGEND[0], 'start')}{_text(_MARGIN, height - 10, _LEGEND[1], 'start')}"
        "</svg>\n"
    )


def _panel(each: Attacked, left: float) -> str:
    rates, found = each.roc.thinned()
    highest = highest_curve(each.claim.profile, rates)
    allowed = highest_curve(each.claim.at_budget(), rates)
    ends = np.array([0.0, 1.0])
    curves = ((ends, ends, _CHANCE), (rates, allowed, _BUDGET), (rates, highest, _HIGHEST), (rates, found, _FOUND))
    name = f"{each.claim.name}: ε = {each.claim.epsilon:g}"
    areas = f"AUC {each.roc.auc:.3f}, at most {each.highest_auc:.3f}"
    return (
        f'<rect x="{left}" y="{_MARGIN}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#444"/>'
        + "".join(_curve(x, y, colour, left) for x, y, colour in curves)
        + _text(left + _SIDE / 2, _MARGIN - 18, name, "middle")
        + _text(left + _SIDE / 2, _MARGIN - 5, areas, "middle")
        + _text(left + _SIDE / 2, _MARGIN + _SIDE + 16, "false positive rate, 0 to 1", "middle")
        + f'<text transform="translate({left - 6} {_MARGIN + _SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "true positive rate, 0 to 1</text>"
    )


def _curve(x: FloatArray, y: FloatArray, colour: str, left: float) -> str:
    across, down = left + _SIDE * x, _MARGIN + _SIDE * (1 - y)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
