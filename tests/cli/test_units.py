"""Studies that protect patients with several rows, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.study.test_units import UNIT, visits
from tests.study.writers import IMAGE_STUDY, write_images, write_study

pytestmark = pytest.mark.usefixtures("engine_tries_models")  # it has not seen units of so many rows before

SEED = ("learning_rate = 2.0", "learning_rate = 2.0\nseed = 1")


def train(inosgd, folder: Path, run: str = "run", *changes, data: str | None = None) -> dict:
    write_study(folder, UNIT, SEED, *changes, data=visits() if data is None else data)
    outcome = inosgd("train", "study.toml", "--out", run, "--every", 4, "--json", "--no-report")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def weights(folder: Path) -> np.ndarray:
    return np.concatenate([each.ravel() for each in load_file(folder / "model" / "model.safetensors").values()])


def test_everything_that_people_read_says_which_unit_is_protected(inosgd, tmp_path):
    report = train(inosgd, tmp_path, data=visits(shared=True))
    assert report["unit"] == "patient"
    assert report["shared_units"] > 0
    shown = inosgd("ledger", "run", "--verify").out
    assert "patients" in shown
    assert "for each single patient" in shown
    card = (tmp_path / "run/model/model-card.md").read_text()
    assert f"one patient with all its examples ({report['shared_units']} of them have several owners)" in card
    assert "For each single patient, with all its training examples," in card
    page = inosgd("report", "run", "--out", "page.html")
    assert page.code == 0, page.err
    text = (tmp_path / "page.html").read_text()
    assert "each single patient" in text
    assert "each single training example" not in text
    planned = inosgd(
        "plan", "--epsilon", "1,2", "--sizes", "500,500", "--steps", 20, "--batch", 50, "--unit", "patient"
    )
    words = " ".join(planned.out.split())
    assert "The guarantee is per patient." in words
    assert "spent ε: of each single patient; ε of 10: of ten of them together" in words


def test_a_run_that_was_cut_short_goes_on_to_the_bit(inosgd, tmp_path, monkeypatch):
    train(inosgd, tmp_path, "whole")
    from inosgd.runs.folder import RunFolder
    from inosgd.runs.resuming import train_durably
    from inosgd.study.from_file import study_from
    from inosgd.study.reading import read_study
    from inosgd.study.running import begin_training, create_run, prepare

    prepared = prepare(study_from(read_study(tmp_path / "study.toml")))
    run = create_run(tmp_path / "cut", prepared)
    with run.lock() as locked:
        state = begin_training(locked, prepared)
        try:
            train_durably(locked, prepared.trainer, state, every=4, callbacks=[_stop_at(6)])
        except KeyboardInterrupt:
            state.ledger.close()
    assert RunFolder.open(tmp_path / "cut").read_ledger().steps == 6
    outcome = inosgd("resume", "cut", "--no-report")
    assert outcome.code == 0, outcome.err
    np.testing.assert_array_equal(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def _stop_at(step: int):
    def callback(state, _) -> None:
        if state.step == step:
            raise KeyboardInterrupt

    return callback


def test_budgets_of_shared_patients_follow_those_of_their_owners(inosgd, tmp_path):
    train(inosgd, tmp_path, data=visits(shared=True))
    asked = json.loads(inosgd("budgets", "run", "--set", "hospital_a=3", "--json").out)
    assert asked["unit"] == "patient"
    shared = {name: owner for name, owner in asked["owners"].items() if " & " in name}
    assert {owner["epsilon"] for name, owner in shared.items() if "hospital_a & hospital_b" in name} <= {2.0}
    assert {owner["epsilon"] for name, owner in shared.items() if name == "hospital_a & clinic"} <= {3.0}
    direct = inosgd("budgets", "run", "--set", f"{next(iter(shared))}=9")
    assert direct.code == 2
    assert "change the budgets of" in " ".join(direct.err.split())


def test_an_owner_withdraws_and_its_rows_go(inosgd, tmp_path):
    train(inosgd, tmp_path, data=visits(shared=True))
    more = ("--set", "hospital_b=4", "--set", "clinic=12")
    outcome = inosgd("budgets", "run", "--withdraw", "hospital_a", *more, "--steps", 16, "--yes", "--json")
    assert outcome.code == 0, outcome.err
    after = json.loads(outcome.out)["owners"]
    assert after["hospital_a"]["examples"] == 0
    assert after["hospital_a"]["spent"] > 0
    assert any(owner["examples"] > 0 for name, owner in after.items() if name.startswith("hospital_a & "))
    resumed = inosgd("resume", "run", "--no-report")
    assert resumed.code == 0, resumed.err
    verified = inosgd("ledger", "run", "--verify")
    assert verified.code == 0, verified.out


def test_owners_join_with_patients_of_their_own(inosgd, tmp_path):
    train(inosgd, tmp_path)
    text = visits(12, seed=5, prefix="N")
    for name in ("hospital_a", "hospital_b", "clinic"):
        text = text.replace(name, "new")
    (tmp_path / "new.csv").write_text(text)
    outcome = inosgd("budgets", "run", "--add", "new=4", "--data", "new.csv", "--steps", 16, "--yes")
    assert outcome.code == 0, outcome.err
    resumed = inosgd("resume", "run", "--no-report", "--json")
    assert resumed.code == 0, resumed.err
    assert json.loads(resumed.out)["owners"]["new"]["spent"] > 0


def test_new_writes_a_study_of_patients_that_trains_as_it_is(inosgd, tmp_path):
    assert inosgd("new", "mine.toml", "--unit").code == 0
    outcome = inosgd("train", "mine.toml", "--out", "run", "--no-report", "--steps", 20)
    assert outcome.code == 0, outcome.err
    text = " ".join(outcome.out.split())
    assert "the ε of each single patient" in text
    assert "have several owners, and are held to the smallest budget among them" in text


def test_a_study_of_images_trains_on_cropped_and_flipped_copies(inosgd, tmp_path):
    write_images(tmp_path / "pictures", count=60)
    results = {}
    for name, more in {"plain": "", "copies": "augmentation = { copies = 2, padding = 2 }\n"}.items():
        (tmp_path / f"{name}.toml").write_text(IMAGE_STUDY + more)
        outcome = inosgd("train", f"{name}.toml", "--out", name, "--json", "--no-report")
        assert outcome.code == 0, outcome.err
        results[name] = json.loads(outcome.out)
        assert results[name]["unit"] == "example"
    assert not np.array_equal(weights(tmp_path / "plain"), weights(tmp_path / "copies"))
    spent = [{owner: each["spent"] for owner, each in found["owners"].items()} for found in results.values()]
    assert spent[0] == spent[1]  # copies cost nothing


def test_predictions_are_per_row(inosgd, tmp_path):
    train(inosgd, tmp_path)
    outcome = inosgd("predict", "run/model", "cases.csv", "--out", "out.csv")
    assert outcome.code == 0, outcome.err
    assert len((tmp_path / "out.csv").read_text().splitlines()) == len(visits().splitlines())
