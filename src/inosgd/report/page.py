"""Page: one HTML file that opens offline in any browser, and loads nothing from elsewhere.

Everything is inside: the style, the charting library (by vl-convert), the numbers and the script. A content security
policy forbids the page to load anything, whatever a name in the data may look like, and every text from a run is
escaped.
"""

from __future__ import annotations

import html
import json
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

from inosgd.report.charts import ChartEntry, available, reading_of, specification
from inosgd.report.library import library
from inosgd.report.marks import MOST_PANELS
from inosgd.report.material import Material
from inosgd.report.sections import first_screen, not_covered, numbers, switches
from inosgd.report.tables import Table, all_tables, length
from inosgd.report.theme import DARK, LIGHT, Look, chart_config, colours


def page(material: Material) -> str:
    """The whole page."""
    tables = all_tables(material)
    entries = available(tables)
    return Template(_asset("page.html")).substitute(
        title=html.escape(material.title),
        css=_asset("page.css"),
        summary=first_screen(material),
        switches=switches(material),
        charts="\n".join(_section(entry, material) for entry in entries),
        not_covered=not_covered(material),
        numbers=numbers(material, tables),
        footer=f"Made by inosgd {version('inosgd')}. This file holds all its numbers and loads nothing.",
        payload=safe_json(_payload(material, tables, entries)),
        library=library(),
        script=_asset("page.js"),
    )


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def compact(table: Table) -> dict[str, Any]:
    """A table by columns; texts are numbers into the list of those that occur."""
    return {"count": length(table), "columns": {name: _compact_column(column) for name, column in table.items()}}


def _compact_column(column: list[Any]) -> Any:
    if not any(isinstance(value, str) for value in column):
        return column
    values = list(dict.fromkeys(column))
    code = {value: number for number, value in enumerate(values)}
    return {"values": values, "codes": [code[value] for value in column]}


def _payload(material: Material, tables: dict[str, Table], entries: list[ChartEntry]) -> dict[str, Any]:
    used = {name for entry in entries for name in (entry.table, *entry.also)}
    return {
        "methods": list(material.main),
        "owners": [owner.name for owner in material.owners],
        "most_panels": MOST_PANELS,
        "tables": {name: compact(table) for name, table in tables.items() if name in used},
        "charts": {entry.name: _chart(entry, material, tables) for entry in entries},
        "looks": {look.name: _look(material, look) for look in (LIGHT, DARK)},
    }


def _chart(entry: ChartEntry, material: Material, tables: dict[str, Table]) -> dict[str, Any]:
    spec: dict[str, Any] = _without_method_legend(specification(entry, material, tables))
    spec["usermeta"] = {**spec.get("usermeta", {}), "tables": [entry.table, *entry.also]}
    return spec


def _look(material: Material, look: Look) -> dict[str, Any]:
    config = chart_config(material.main, look)
    return {"config": config, "colours": colours(material.main, look)}


def _without_method_legend(part: Any) -> Any:
    """The switches of a page are its legend of methods."""
    if isinstance(part, list):
        return [_without_method_legend(each) for each in part]
    if not isinstance(part, dict):
        return part
    bare = {name: _without_method_legend(value) for name, value in part.items()}
    return {**bare, "legend": None} if part.get("field") == "method" and "legend" in part else bare


def _section(entry: ChartEntry, material: Material) -> str:
    hidden = entry.panels is not None and entry.panels.by_owner and len(material.owners) > MOST_PANELS
    some = (
        f" Panels of {MOST_PANELS} owners, evenly spaced by budget; switch owners off to see others." if hidden else ""
    )
    title = entry.title.format(score=material.score.name)
    reading = reading_of(entry, material)
    return (
        f'<section class="chart" id="{entry.name}" aria-labelledby="{entry.name}-title"><div>'
        f'<h2 id="{entry.name}-title">{html.escape(title)}</h2><p>{html.escape(reading + some)}</p>'
        '</div><div class="plot"></div></section>'
    )


def _asset(name: str) -> str:
    return files("inosgd.report").joinpath("assets", name).read_text(encoding="utf-8")
