"""Library: the script that draws charts in a browser, put together once for each version of vl-convert.

Putting it together takes two seconds, and the result is always the same; see `inosgd.kept`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inosgd._extras import needs
from inosgd.kept import keep, kept_at, read_kept


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that can stand inside an HTML page."""
    place = place_of_library()
    known = read_kept(place)
    if known is None:
        known = _bundle().encode()
        keep(place, known)
    return known.decode().replace("</script", "<\\/script")


def place_of_library() -> Path | None:
    """Where the script of the installed version is kept."""
    return kept_at(f"charts-{version('vl-convert-python')}.js")


def _bundle() -> str:
    with needs("report"):
        import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its stub calls an optional argument required
    return str(bundle())
