"""Saved models come back as they were, whole or not at all."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from inosgd.analysis.task import classification, multi_label, regression
from inosgd.errors import InvalidArgumentError
from inosgd.models import cnn, lstm, mlp
from inosgd.models.saved import CARD, load_weights, loading_code, model_card, read_description, save_model

DESCRIPTION = {
    "title": "A model",
    "inosgd": "0",
    "architecture": {"name": "mlp", "arguments": {}, "inputs": [3], "symbols": None, "outputs": 2, "seed": 0},
    "inputs": {
        "kind": "table",
        "columns": [
            {"name": "a|b", "kind": "numeric", "range": [0.0, 1.0], "fitted": True},
            {"name": "c", "kind": "categorical", "categories": ["x", "y"], "fitted": False},
        ],
    },
    "privacy": {
        "epsilon": [0.5, 8.0],
        "delta": [1e-5, 1e-5],
        "owner_count": 2,
        "owners": {"h": {"epsilon": 0.5, "delta": 1e-5, "spent": 0.4}},
        "method": "ino-sgd",
        "variant": "fair",
        "accountant": "pld",
        "steps": 3,
        "learning_rate": "2",
        "averaging": None,
        "randomness": "secure",
        "guarantee": "G.",
        "not_covered": ["This.", "That."],
    },
    "task": classification(["no", "y|es"], balanced=True).to_json(),
    "evaluation": {
        "scored_by": "balanced accuracy",
        "overall": 0.5,
        "worst": 0.25,
        "examples": 8,
        "classes": [1.0, None],
        "measures": {"f1": 0.125, "roc_auc": None},
    },
}


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        "mlp": (mlp(3, 2, hidden=(4,), activation="gelu", seed=1), torch.ones(2, 3)),
        "flat": (nn.Sequential(nn.Flatten(), *mlp(4, 2, activation="elu", seed=1)), torch.ones(2, 2, 2)),
        "cnn": (cnn(1, 16, 16, 2, group_norm=True, seed=1), torch.ones(2, 1, 16, 16)),
        "square": (nn.Sequential(nn.Unflatten(1, (1, 9)), *cnn(1, 9, 9, 2, seed=1)), torch.ones(2, 9, 9)),
        "lstm": (lstm(9, 2, padding=0, seed=1), torch.tensor([[1, 2, 0], [3, 0, 0]])),
    }


@pytest.mark.parametrize("name", models())
def test_the_code_in_the_card_builds_the_same_model(tmp_path, monkeypatch, name):
    model, batch = models()[name]
    folder = save_model(tmp_path / "model", model, DESCRIPTION)
    program = loading_code(read_description(folder))
    assert "inosgd" not in program
    monkeypatch.chdir(folder)
    found: dict = {}
    exec(program, found)  # what a reader of the card does
    assert torch.equal(found["model"](batch), model.eval()(batch))
    assert found["names"] == list(DESCRIPTION["task"]["names"])


def test_the_card_says_what_matters(tmp_path):
    card = (save_model(tmp_path / "m", models()["mlp"][0], DESCRIPTION) / "model-card.md").read_text()
    for words in (
        "epsilon 0.5 to 8, of 2 owners", "1e-05", "ino-sgd, variant fair", "- That.", "yes, unaccounted", "a\\|b",
        "Balanced accuracy 50.0 % on 8 held-out examples; 25.0 % for the worst owner", "| h | 0.5 |",
        "y\\|es | -", "| f1 | 0.125 |",
    ):  # fmt: skip
        assert words in card


def test_findings_come_before_everything_else(tmp_path):
    found = {"kind": "at-chance", "about": "owner h", "text": "For owner h | it guesses.", "evidence": {}}
    card = (save_model(tmp_path / "m", models()["mlp"][0], {**DESCRIPTION, "findings": [found]}) / CARD).read_text()
    assert card.index("- For owner h \\| it guesses.") < card.index("## Privacy")
    assert "Before you use it" not in model_card({**DESCRIPTION, "torch_code": ""})  # the control


@pytest.mark.parametrize(
    ("task", "words"),
    [(multi_label(["a", "b"]), "A classifier of 2 labels"), (regression(["a", "b"]), "A regression of 2 numbers")],
)
def test_cards_of_other_tasks(task, words):
    quality = {"scored_by": task.score, "overall": -0.25, "worst": -1.0, "examples": 8, "classes": None}
    card = model_card({**DESCRIPTION, "torch_code": "", "task": task.to_json(), "evaluation": quality})
    assert words in card
    assert "-0.250 on 8 held-out examples" in card
    assert "argmax" not in card


def test_a_card_says_how_numbers_get_back_their_units():
    task = regression(["age"], ranges=[(0, 120)])
    card = model_card({**DESCRIPTION, "torch_code": "", "task": task.to_json()})
    for words in ("A regression of 1 number (age)", "ranges = [[0.0, 120.0]]", "low + (output + 1) / 2 * (high - low)"):
        assert words in card
    assert "ranges" not in model_card({**DESCRIPTION, "torch_code": ""})  # the control


def test_weights_must_fit(tmp_path):
    folder = save_model(tmp_path / "m", mlp(3, 2, seed=0), DESCRIPTION)
    assert torch.equal(load_weights(folder, mlp(3, 2, seed=5))[0].weight, mlp(3, 2, seed=0)[0].weight)
    with pytest.raises(InvalidArgumentError, match="cannot be loaded"):
        load_weights(folder, mlp(4, 2, seed=0))
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(InvalidArgumentError, match="cannot be loaded"):
        load_weights(folder, mlp(3, 2, seed=0))


def test_a_model_that_cannot_be_described_leaves_nothing_and_keeps_the_old_one(tmp_path):
    folder = save_model(tmp_path / "m", mlp(3, 2, seed=0), DESCRIPTION)
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        save_model(folder, mlp(3, 2, seed=1), {**DESCRIPTION, "inputs": float("nan")})
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    save_model(folder, mlp(3, 2, seed=1), DESCRIPTION)
    assert (folder / "model.safetensors").read_bytes() != before
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_what_is_no_description(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"model\.json"):
        read_description(tmp_path)


@pytest.mark.parametrize("found", [1, 99, None])
def test_a_model_of_another_version_is_refused_by_its_format(tmp_path, found):
    folder = save_model(tmp_path / "m", mlp(3, 2, seed=0), DESCRIPTION)
    assert read_description(folder)["format"] == 2
    fields = read_description(folder) | {"format": found}
    (folder / "model.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidArgumentError, match=f"format={found}: another version of inosgd wrote this model"):
        read_description(folder)
