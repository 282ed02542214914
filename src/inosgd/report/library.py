"""Library: the script that draws charts in a browser, put together once for each version of vl-convert.

Putting it together takes two seconds, and the result is always the same. It is kept in the user's folder for such
things (``XDG_CACHE_HOME``, by default ``~/.cache``) and may be deleted at any time.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inosgd.files import sha256


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that can stand inside an HTML page."""
    place = kept_at()
    script = read_kept(place)
    if script is None:
        script = _bundle()
        keep(place, script)
    return script.replace("</script", "<\\/script")


def kept_at() -> Path:
    """Where the script of the installed version is kept."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return folder / "inosgd" / f"charts-{version('vl-convert-python')}.js"


def read_kept(path: Path) -> str | None:
    """The script at ``path``; None unless it is whole, and nobody but its user could have written it."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            return None
        digest, _, script = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return script if digest == _first_line(script) else None


def keep(path: Path, script: str) -> None:
    """Put the script at ``path``; where that is not possible it is put together again next time."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, working = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its user only
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{_first_line(script)}\n{script}")
        os.replace(working, path)


def _first_line(script: str) -> str:
    return f"// sha256 {sha256(script.encode())}"


def _bundle() -> str:
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its stub calls an optional argument required
    return str(bundle())
