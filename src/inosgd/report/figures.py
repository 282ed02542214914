"""Figures: the charts of a page as files for papers and slides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inosgd._extras import needs
from inosgd.errors import InvalidArgumentError
from inosgd.report.charts import available, specification, with_data
from inosgd.report.material import Material
from inosgd.report.tables import all_tables
from inosgd.report.theme import FIGURE_FONT, LIGHT, chart_config

FORMATS = ("svg", "png", "pdf")

STILL = {"background": "white", "aria": False, "padding": {"left": 24, "right": 12, "top": 5, "bottom": 5}}
"""Figures have room beside them: where a font is not installed, labels in another one are wider than was measured."""


def draw(spec: Mapping[str, Any], kind: str) -> bytes:
    """A specification as the content of a file of this kind; nothing is fetched from anywhere."""
    with needs("report"):
        import vl_convert

    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(dict(spec), allowed_base_urls=[])).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(dict(spec), scale=2, allowed_base_urls=[]))
    return bytes(vl_convert.vegalite_to_pdf(dict(spec), allowed_base_urls=[]))


def figure_files(material: Material, formats: Sequence[str], charts: Sequence[str] | None = None) -> dict[str, bytes]:
    """The content of every figure by file name; ``charts`` are names of charts, all that there are if not given."""
    tables = all_tables(material)
    entries = available(tables)
    known = [entry.name for entry in entries]
    for name in charts or ():
        if name not in known:
            raise InvalidArgumentError(f"charts: {name!r} is not one of {', '.join(known)}")
    for kind in formats:
        if kind not in FORMATS:
            raise InvalidArgumentError(f"formats: {kind!r} is not one of {', '.join(FORMATS)}")
    config = {**chart_config(material.main, LIGHT, font=FIGURE_FONT), **STILL}
    files: dict[str, bytes] = {}
    for entry in entries:
        if charts is None or entry.name in charts:
            still = without_hovering(specification(entry, material, tables))
            spec = {**with_data(still, entry, tables), "config": config}
            files |= {f"{entry.name}.{kind}": draw(spec, kind) for kind in formats}
    return files


def without_hovering(part: Any) -> Any:
    """The specification without the unseen marks that show numbers under a pointer: most of a file's size."""
    if isinstance(part, list):
        return [without_hovering(each) for each in part if not _is_unseen(each)]
    return {name: without_hovering(value) for name, value in part.items()} if isinstance(part, dict) else part


def _is_unseen(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("mark"), dict) and part["mark"].get("opacity") == 0


def write_files(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write figures into ``folder``, replacing those with the same names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]
