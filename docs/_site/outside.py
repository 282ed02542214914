"""A hook of MkDocs: pages link to files of the repository, and the site makes the best of each such link.

Figures of measurements are shown. A link to a module leads to its entry in the reference. Measurements (`evidence/`,
`benchmarks/`), the changelog and the threat model become pages of the site. Any other link out of `docs/` keeps its
text and loses its target. Links within `docs/` are left to MkDocs, which checks them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MEASURED = ("evidence", "benchmarks", "checks", "examples")
OUTSIDE = (*MEASURED, "CHANGELOG.md", "SECURITY.md")
SHOWN = {".md", ".svg", ".png"}

LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
ENTRY = re.compile(r"^::: (?P<module>[\w.]+)$", flags=re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Measurements are pages too, under the paths that they have in the repository."""
    from mkdocs.structure.files import File

    for path in sorted(path for name in OUTSIDE for path in (ROOT / name, *(ROOT / name).rglob("*"))):
        if path.suffix in SHOWN:
            inside = path.relative_to(ROOT).as_posix()
            files.append(File(inside, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that leave `docs/` lead to a page of the site, or nowhere."""
    inside = page.file.src_uri
    folder = ROOT if inside.startswith(OUTSIDE) else ROOT / "docs"
    return LINK.sub(lambda link: _replaced(link, (folder / inside).parent, inside), markdown)


def _replaced(link: re.Match[str], folder: Path, inside: str) -> str:
    target, _, anchor = link["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = Path(os.path.normpath(folder / target))
    found = _place(path.relative_to(ROOT).as_posix())
    if found is None:
        return link["text"]
    place, _, own_anchor = found.partition("#")
    relative = os.path.relpath(place, os.path.dirname(inside) or ".")
    wanted = own_anchor or anchor
    return f"[{link['text']}]({relative}{'#' + wanted if wanted else ''})"


def _place(path: str) -> str | None:
    """Where a file of the repository is on the site; None if it is nowhere."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("src/"):
        return reference_places().get(module_of(path))
    file = ROOT / path
    return path if path.startswith(OUTSIDE) and file.suffix in SHOWN and file.is_file() else None


def module_of(path: str) -> str:
    """`src/inosgd/planning/signals.py` is the module `inosgd.planning.signals`."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def reference_places() -> dict[str, str]:
    """For every module in the reference its page and anchor."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    return {
        entry["module"]: f"reference/{page.name}#{entry['module']}"
        for page in pages
        for entry in ENTRY.finditer(page.read_text(encoding="utf-8"))
    }
