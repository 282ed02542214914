"""Writing: from material to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inosgd._extras import require
from inosgd.files import write_private
from inosgd.report.material import Material


def write_report(material: Material, path: Path) -> Path:
    """One page at ``path`` that opens offline, there whole or not at all, and readable by its user only.

    It names owners and their budgets: to hand it on is to publish them.
    """
    require("report", "altair", "vl_convert")
    from inosgd.report.page import page

    content = page(material).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, content)
    return path


def write_figures(
    material: Material, folder: Path, formats: Sequence[str] = ("svg",), charts: Sequence[str] | None = None
) -> list[Path]:
    """The charts as files in ``folder``: SVG, PNG or PDF."""
    require("report", "altair", "vl_convert")
    from inosgd.report.figures import figure_files, write_files

    return write_files(figure_files(material, formats, charts), folder)
