"""The scripts in examples/ do what they say, in small."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and peft

FOLDER = Path(__file__).parents[1] / "examples"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _generator_stays():
    with torch.random.fork_rng():
        yield


def test_adapters_of_the_script_that_fails_elsewhere_are_trained_and_usable(capsys):
    found = script("dp_lora").main()
    assert found["adapters moved"] > 0
    assert found["base moved"] == 0
    assert found["loss, loaded"] == pytest.approx(found["loss, trained"], rel=1e-6)
    assert 7 < found["epsilon"] <= 8


def test_a_character_model_is_tuned_under_two_budgets_and_writes(tmp_path, capsys):
    found = script("characters").main(
        ["--steps", "12", "--public-steps", "8", "--notes", "160", "--out", str(tmp_path)]
    )
    assert set(found) == {"coast before", "summit before", "coast after", "summit after"}
    assert (tmp_path / "adapters" / "adapter_model.safetensors").exists()
    logged = [json.loads(line)["epsilon"] for line in (tmp_path / "public.jsonl").read_text().splitlines()]
    assert len(logged) == 4
    assert logged[-1]["summit"] <= 2.0 < logged[-1]["coast"] <= 8.0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 + 2 + 6


def test_a_loop_of_ones_own_keeps_budgets_and_logs_public_numbers(capsys):
    spent = script("own_loop").main(epochs=0.5)
    assert spent["outbreak"] <= 0.5
    assert spent["city"] <= 5.0
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(logged) == 4
    assert set(logged[0]) == {"step", "epsilon", "noise_scale", "expected_batch_size", "learning_rate"}
    assert logged[-1]["learning_rate"] < logged[0]["learning_rate"]


def test_workers_are_faster_where_reading_waits(capsys):
    made = script("slow_images")
    alone, shared = made.main(0, steps=5), made.main(8, steps=5)
    assert shared < alone


def test_an_interrupted_run_ends_with_the_same_model(tmp_path, capsys):
    apart, spent = script("interrupted").main(tmp_path)
    assert apart == 0
    assert 0 < spent <= 8


def test_methods_side_by_side(tmp_path, capsys):
    shown = script("compared").main(steps=5, seeds=1, folder=tmp_path)
    assert "Within budget?" in repr(shown)
    assert "<svg" in shown._repr_html_()
    assert (tmp_path / "figures" / "owners.svg").is_file()
