"""Benchmarks without their processes, which take longer to import torch than what they measure takes."""

from __future__ import annotations

import importlib
import json

import pytest


@pytest.fixture
def in_this_process(monkeypatch):
    """What benchmarks run in new processes is run in this one; `test_new_process` tests what is left out."""

    def call(module, function, *arguments):
        given = json.loads(json.dumps(arguments))
        return json.loads(json.dumps(getattr(importlib.import_module(module), function)(*given)))

    for module in ("step", "memory"):
        monkeypatch.setattr(f"inosgd.bench.{module}.in_new_process", call)
