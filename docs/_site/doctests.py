"""An extension of griffe: examples in docstrings are code, also where they stand between paragraphs."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)


class Doctests(Extension):
    """Puts a fence around every run of lines that opens with ``>>>``."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The docstring with its examples as blocks of code."""
    return EXAMPLE.sub(lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", text)
