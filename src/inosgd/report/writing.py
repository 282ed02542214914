"""Writing: from material to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inosgd.errors import InosgdError
from inosgd.files import write_private
from inosgd.report.material import Material


def require_charts() -> None:
    """Raise unless what draws charts is installed; it is imported here and not before a report is asked for."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise InosgdError(
            f"reports need the package {error.name}: pip install 'altair>=5.5' 'vl-convert-python>=1.8'"
        ) from None


def write_report(material: Material, path: Path) -> Path:
    """One page at ``path`` that opens offline, there whole or not at all, and readable by its user only.

    It names owners and their budgets: to hand it on is to publish them.
    """
    require_charts()
    from inosgd.report.page import page

    content = page(material).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, content)
    return path


def write_figures(
    material: Material, folder: Path, formats: Sequence[str] = ("svg",), charts: Sequence[str] | None = None
) -> list[Path]:
    """The charts as files in ``folder``: SVG, PNG or PDF."""
    require_charts()
    from inosgd.report.figures import figure_files, write_files

    return write_files(figure_files(material, formats, charts), folder)
