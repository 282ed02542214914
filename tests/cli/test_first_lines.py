"""What is asked first is answered first, and alike by terminal, JSON, card and page."""

from __future__ import annotations

import html
import json
import re

import pytest

from inosgd.analysis.answers import BUDGETS, LOW, NEXT, QUALITY
from inosgd.report import read_runs
from inosgd.report.sections import first_screen
from inosgd.study.yardstick import NOT_PRIVATE
from tests.study.writers import table_text, write_study

STRICT = (("steps = 12", "steps = 12\nseed = 1"),)
"""Under these budgets the model learns to say the same of everything."""

EASY = (
    ("steps = 12", "steps = 60\nseed = 1"),
    ("learning_rate = 2.0", "learning_rate = 20.0"),
    ("hospital_a = 1.0\nhospital_b = 2.0\nclinic = 8.0", "hospital_a = 200\nhospital_b = 200\nclinic = 300"),
)


def trained(inosgd, folder, changes, *options):
    study = write_study(folder, *changes, data=table_text(400))
    outcome = inosgd("train", study, "--out", "run", "--no-report", *options)
    assert outcome.code == 0, outcome.err
    return outcome


@pytest.fixture(scope="module")
def useless(inosgd_once):
    trained(inosgd_once, inosgd_once.folder, STRICT, "--json")
    return inosgd_once.folder / "run"


def screen(run) -> str:
    return html.unescape(first_screen(read_runs([run]))).replace("\u00a0", " ")


def test_a_model_that_predicts_one_class_says_so_in_the_first_line(useless):
    material = read_runs([useless])
    assert material.answers[0].question == QUALITY
    assert re.match(r"The model predicts class (yes|no) for every held-out example", material.verdict)
    shown = screen(useless)
    assert shown.index("predicts class") < shown.index("Within budget?")
    card = (useless / "model" / "model-card.md").read_text()
    glance = card[card.index("## At a glance") :].splitlines()[2]
    assert glance.startswith("- **Any good?** No. The model predicts class")


def test_all_places_give_the_same_answers(inosgd, tmp_path):
    outcome = trained(inosgd, tmp_path, EASY, "--json")
    found = json.loads(outcome.out)
    assert [each["question"] for each in found["answers"]] == [BUDGETS, QUALITY, LOW, NEXT]
    page, card = screen(tmp_path / "run"), (tmp_path / "run" / "model" / "model-card.md").read_text()
    for answer in found["answers"][:2]:
        assert answer["text"] in page
        assert answer["text"] in card
    assert [each["setting"] for each in found["suggestions"]] == [
        each.setting for each in read_runs([tmp_path / "run"]).suggestions
    ]
    assert "norm_to_threshold" in found["held_out"]["measures"]
    assert found["yardstick_not_private"] is None


def test_the_terminal_begins_with_the_answers(inosgd, tmp_path):
    lines = trained(inosgd, tmp_path, EASY).out.splitlines()
    assert lines[0].startswith("Within budget? Yes, all 3 owners")
    assert any(line.startswith("What next?") for line in lines)


def test_a_card_that_names_no_owner_names_none_in_its_answers(inosgd, tmp_path):
    trained(inosgd, tmp_path, EASY)
    card = (tmp_path / "run" / "model" / "model-card.md").read_text()
    glance = card[card.index("## At a glance") : card.index("## Privacy")]
    for name in ("hospital_a", "hospital_b", "clinic"):
        assert name not in glance


def test_a_yardstick_is_shown_as_not_private_and_kept_out_of_the_card(inosgd, tmp_path):
    found = json.loads(trained(inosgd, tmp_path, EASY, "--yardstick-not-private", "--json").out)
    run = tmp_path / "run"
    assert 0.8 < found["yardstick_not_private"] <= 1
    assert "without privacy" in found["answers"][1]["text"]
    assert NOT_PRIVATE in screen(run)
    assert "(not private)" in screen(run)
    for path in (run / "model").iterdir():
        content = path.read_bytes().lower()
        assert b"yardstick" not in content
        assert b"without privacy" not in content
    assert inosgd("ledger", run, "--verify").code == 0


def test_a_yardstick_changes_no_bit_of_the_private_model(inosgd, tmp_path):
    weights = []
    for name, options in (("with", ["--yardstick-not-private"]), ("without", [])):
        folder = tmp_path / name
        folder.mkdir()
        study = write_study(folder, *EASY)
        assert inosgd("train", study, "--out", folder / "run", "--no-report", *options).code == 0
        weights.append((folder / "run" / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_a_yardstick_needs_held_out_examples(inosgd, tmp_path):
    study = write_study(tmp_path, ("fraction = 0.25", "fraction = 0.0"))
    outcome = inosgd("train", study, "--out", "run", "--yardstick-not-private")
    assert outcome.code != 0
    assert "yardstick-not-private" in outcome.err
    assert not (tmp_path / "run").exists()
