"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

from rich.console import Console

results = Console(soft_wrap=False)
messages = Console(stderr=True)
