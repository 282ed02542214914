"""Measuring in a process of its own, whose memory and allocator nothing has used before."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from inosgd.errors import InosgdError

_PROGRAM = (
    "import importlib, json, sys; module, name, given = sys.argv[1:]; "
    "print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(given))))"
)


def in_new_process(module: str, function: str, *arguments: Any) -> Any:
    """What a function of a module returns in a new Python; arguments and result are JSON.

    Raises:
        InosgdError: With the last line of what the function raised.
    """
    command = [sys.executable, "-c", _PROGRAM, module, function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own module)
    if done.returncode != 0:
        raise InosgdError((done.stderr.strip() or f"it ended with code {done.returncode}").splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])
