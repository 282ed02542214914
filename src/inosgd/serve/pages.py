"""Pages: templates with every value escaped, and what they have in common."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from inosgd._extras import needs

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC = {"page.css": "text/css", "enter.js": "text/javascript", "live.js": "text/javascript"}
"""The files beside the pages, and their types."""


@lru_cache(maxsize=1)
def _templates() -> Environment:
    with needs("serve"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    return Environment(
        loader=PackageLoader("inosgd.serve"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """The page of a template; every value is text, whatever is in it."""
    return _templates().get_template(f"{template}.html").render(**values)


@lru_cache(maxsize=len(STATIC))
def static(name: str) -> bytes:
    """A file beside the pages."""
    return (files("inosgd.serve") / "static" / name).read_bytes()
