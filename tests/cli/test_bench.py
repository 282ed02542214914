"""``inosgd bench``: what is asked for is measured."""

from __future__ import annotations

import json


def test_one_model_and_one_method(inosgd, in_this_process):
    outcome = inosgd("bench", "step", "--models", "mlp", "--methods", "engine", "--repeats", 1, "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert {name: list(methods) for name, methods in found["models"].items()} == {"mlp": ["plain", "engine"]}
    assert found["ino_over_idp"] is None
    assert isinstance(found["machine"]["kernel"], bool)


def test_unknown_model(inosgd):
    outcome = inosgd("bench", "step", "--models", "resnet")
    assert outcome.code == 2
    assert "resnet18" in outcome.err
