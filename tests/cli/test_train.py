"""Train, resume, ledger, budgets, publish and predict, as their users run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from inosgd.accounting.reference import reference_epsilon
from inosgd.cli.ledger import _differences
from inosgd.report.trainings import read_training
from inosgd.runs.folder import RunFolder
from inosgd.study.from_file import study_from
from inosgd.study.reading import read_study
from inosgd.study.running import begin_training, create_run, finish, prepare
from inosgd.training import train_step
from tests.processes import forked
from tests.study.writers import IMAGE_STUDY, OWNERS, table_text, write_images, write_study


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def same_bits(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return all(np.array_equal(first[key], second[key]) for key in first)


def train(inosgd, tmp_path, *arguments: object, changes=(), data: str | None = None) -> dict:
    write_study(tmp_path, *changes, data=data)
    outcome = inosgd("train", "study.toml", "--out", "run", "--every", 4, "--json", "--no-report", *arguments)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def reference_spending(run: Path, *names: str) -> dict[str, float]:
    """What dp-accounting makes of the phases in the ledger, with none of our accountants; for all owners or some."""
    ledger = RunFolder.open(run).read_ledger()
    found = {}
    for row, (name, budget, _) in enumerate(ledger.table):
        if names and name not in names:
            continue
        exposures = [
            (float(phase.terms.sampling_rates[row]), float(phase.terms.noise_multipliers()[row]), phase.steps)
            for phase in ledger.phases
        ]
        found[name] = reference_epsilon(exposures, budget.delta, "pld", discretization=5e-4)
    return found


def test_new_writes_a_study_that_trains_as_it_is(inosgd, tmp_path):
    assert inosgd("new", "mine.toml").code == 0
    outcome = inosgd("train", "mine.toml", "--out", "run", "--no-report")
    assert outcome.code == 0, outcome.err
    for word in ("hospital_a", "held-out examples", "run/model", "inosgd publish"):
        assert word in outcome.out
    card = (tmp_path / "run/model/model-card.md").read_text()
    assert "epsilon 1 to 8, of 3 owners" in card
    assert "hospital_a" not in card  # budgets' range only
    again = inosgd("new", "mine.toml")
    assert again.code == 2
    assert "already exists" in again.err


def test_a_training_ends_in_a_report_and_a_rollback_takes_it_back(inosgd, tmp_path):
    write_study(tmp_path)
    outcome = inosgd("train", "study.toml", "--out", "run", "--every", 4)
    page = tmp_path / "run/report.html"
    assert "Report: run/report.html" in outcome.out
    text = page.read_text()
    assert all(owner in text for owner in OWNERS)
    assert "Each owner while training: accuracy" in text  # judged with every checkpoint by default
    assert [line["step"] for line in RunFolder.open(tmp_path / "run").metrics()] == [4, 8, 12]
    assert inosgd("budgets", "run", "--set", "hospital_a=0.8", "--yes").code == 0
    assert not page.exists()
    resumed = json.loads(inosgd("resume", "run", "--json").out)
    assert resumed["report"] == str(page)
    assert page.exists()
    steps = [line["step"] for line in RunFolder.open(tmp_path / "run").metrics()]
    assert steps == sorted(set(steps))  # what was given up is gone, and nothing is there twice
    assert steps[-1] == 12


def test_the_report_has_every_owner_within_its_budget(inosgd, tmp_path):
    report = train(inosgd, tmp_path)
    assert report["steps"] == 12
    assert report["randomness"] == "secure"
    assert report["warnings"] == []
    assert set(report["owners"]) == set(OWNERS)
    for owner in report["owners"].values():
        assert 0 < owner["spent"] <= owner["epsilon"]
        assert 0 <= owner["held_out_score"] <= 1
    for name, epsilon in reference_spending(tmp_path / "run").items():
        assert epsilon <= report["owners"][name]["epsilon"] * 1.001


def test_a_seeded_run_repeats_itself_and_says_what_that_means(inosgd, tmp_path):
    report = train(inosgd, tmp_path, "--seed", 5)
    assert report["randomness"] == "seeded"
    assert "SEEDED" in report["warnings"][0]
    assert "SEEDED" in (tmp_path / "run/model/model-card.md").read_text()
    for name, seed in (("same", 5), ("other", 6)):
        assert inosgd("train", "study.toml", "--out", name, "--seed", seed, "--json", "--no-report").code == 0
    assert same_bits(tmp_path / "run/model", tmp_path / "same/model")
    assert not same_bits(tmp_path / "run/model", tmp_path / "other/model")


def interrupted_run(inosgd, tmp_path, monkeypatch, after: int, *arguments: object):
    """A run whose process is interrupted by Ctrl-C after some steps."""
    taken = []

    def step_or_stop(trainer, state):
        if len(taken) == after:
            raise KeyboardInterrupt
        taken.append(state.step)
        return train_step(trainer, state)

    with monkeypatch.context() as patched:
        patched.setattr("inosgd.training.train_step", step_or_stop)
        return inosgd("train", "study.toml", "--out", "run", "--every", 4, "--no-report", *arguments)


@pytest.mark.parametrize("after", [0, 6])
def test_a_resumed_run_reaches_the_same_bits(inosgd, tmp_path, monkeypatch, after):
    write_study(tmp_path)
    assert inosgd("train", "study.toml", "--out", "whole", "--seed", 5, "--json", "--no-report").code == 0
    stopped = interrupted_run(inosgd, tmp_path, monkeypatch, after, "--seed", 5)
    assert stopped.code == 130
    assert "inosgd resume" in stopped.err
    assert not (tmp_path / "run/model").exists()
    resumed = inosgd("resume", "run", "--json", "--no-report")
    assert resumed.code == 0, resumed.err
    assert same_bits(tmp_path / "run/model", tmp_path / "whole/model")
    assert RunFolder.open(tmp_path / "run").read_ledger().steps == 12
    assert inosgd("ledger", "run", "--verify").code == 0
    assert inosgd("resume", "run", "--json", "--no-report").code == 0  # a finished run has nothing left to do
    assert same_bits(tmp_path / "run/model", tmp_path / "whole/model")


def test_an_averaged_run_is_resumed_published_and_told_of(inosgd, tmp_path, monkeypatch):
    write_study(
        tmp_path, ("learning_rate = 2.0", 'learning_rate = 0.1\nlearning_rate_unit = "noise"\naveraging = "tail"')
    )
    told = inosgd("train", "study.toml", "--out", "whole", "--seed", 5, "--no-report")
    assert "The model is an average of iterates (tail, share 0.5), as its study says. The last iterate: " in told.out
    facts = dict(read_training(tmp_path / "whole").facts)
    assert (facts["learning rate"], facts["averaging"]) == ("0.1 in noise units", "tail, share 0.5")
    assert facts["last iterate"].endswith("overall")
    assert interrupted_run(inosgd, tmp_path, monkeypatch, 9, "--seed", 5).code == 130
    resumed = json.loads(inosgd("resume", "run", "--json", "--no-report").out)
    assert resumed["held_out"]["last_iterate"]["loss"] != resumed["held_out"]["loss"]
    assert same_bits(tmp_path / "run/model", tmp_path / "whole/model")
    card = (tmp_path / "run/model/model-card.md").read_text()
    assert "| learning rate | 0.1 in noise units |" in card
    early = inosgd("publish", "run", "--step", 8)
    assert "It is the last iterate; --to FOLDER writes the average" in " ".join(early.out.split())
    assert inosgd("publish", "run", "--to", "published").code == 0
    assert same_bits(tmp_path / "run/model", tmp_path / "published")


def test_resume_refuses_other_data(inosgd, tmp_path, monkeypatch):
    write_study(tmp_path)
    interrupted_run(inosgd, tmp_path, monkeypatch, 5)
    (tmp_path / "cases.csv").write_text(table_text(seed=1))
    refused = inosgd("resume", "run", "--no-report")
    assert refused.code == 2
    assert "cases.csv: it is not the file that this run began with" in refused.err
    (tmp_path / "cases.csv").write_text(table_text())
    assert inosgd("resume", "run", "--json", "--no-report").code == 0


def test_the_run_folder_holds_no_example_and_is_private(inosgd, tmp_path):
    table = re.sub(r"\.(\d{4}),", r".\g<1>7319,", table_text())  # as many digits as no measure is shown with
    train(inosgd, tmp_path, data=table, changes=[("[model]", "[evaluation]\nevery = 6\n\n[model]")])
    run = tmp_path / "run"
    assert run.stat().st_mode & 0o077 == 0
    doses = {line.split(",")[2].encode() for line in table.splitlines()[1:]}
    assert all(len(dose.partition(b".")[2]) == 8 for dose in doses)
    for path in run.rglob("*"):
        if path.is_file():
            written = path.read_bytes()
            assert not any(dose in written for dose in doses), path
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [6, 12]
    aggregates = {"overall", "worst", "worst_half", "imbalance", "loss", "owners", "classes", "members", "predicted"}
    assert set(lines[0]) == aggregates | {"step", "scored_by", "examples", "measures", "guessing", "last_iterate"}
    assert lines[0]["measures"] == {} != lines[1]["measures"]


def test_what_dp_accounting_finds_above_what_is_shown_as_spent_is_explained_there():
    owners = {"a": {"spent": 1.11, "reference": 1.128}, "b": {"spent": 2.0, "reference": 1.9}, "c": {"spent": 1.0}}
    (note,) = _differences(owners)
    assert "up to 0.018 more than is shown as spent" in note
    assert not _differences({"b": owners["b"], "c": owners["c"]})


def test_ledger_shows_and_verifies(inosgd, tmp_path, dp_accounting_is_asked):
    train(inosgd, tmp_path)
    shown = json.loads(inosgd("ledger", "run", "--json").out)
    assert shown["steps"] == 12
    assert all(owner["remaining"] >= 0 for owner in shown["owners"].values())
    verified = inosgd("ledger", "run", "--verify")
    assert verified.code == 0
    assert "dp-accounting finds all owners within budget" in verified.out
    path = tmp_path / "run/ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[6:]))
    broken = inosgd("ledger", "run", "--verify", "--json")
    assert broken.code == 1
    assert not json.loads(broken.out)["verified"]
    assert json.loads(broken.out)["findings"]
    assert inosgd("ledger", "nowhere").code == 2


def test_raised_budgets_end_within_them(inosgd, tmp_path, monkeypatch):
    """By dp-accounting, which shares no code with what planned it."""
    write_study(tmp_path)
    interrupted_run(inosgd, tmp_path, monkeypatch, 8)
    shown = inosgd("budgets", "run", "--set", "hospital_a=3", "--set", "clinic=9")
    assert shown.code == 0, shown.err
    assert "would continue from step 8 of 12" in shown.out
    assert "Nothing has been done" in shown.out
    assert RunFolder.open(tmp_path / "run").read_ledger().table.epsilons.tolist() == [1, 2, 8]
    assert inosgd("budgets", "run", "--set", "hospital_a=3", "--set", "clinic=9", "--yes").code == 0
    report = json.loads(inosgd("resume", "run", "--json", "--no-report").out)
    allowed = {"hospital_a": 3.0, "hospital_b": 2.0, "clinic": 9.0}
    assert {name: owner["epsilon"] for name, owner in report["owners"].items()} == allowed
    for name, epsilon in reference_spending(tmp_path / "run").items():
        assert epsilon <= allowed[name] * 1.001
    assert report["owners"]["hospital_a"]["spent"] > 1.5  # the new budget is used, not only allowed
    assert inosgd("ledger", "run", "--verify").code == 0


def test_a_lowered_budget_restores_the_right_checkpoint(inosgd, tmp_path):
    train(inosgd, tmp_path)
    run = RunFolder.open(tmp_path / "run")
    spent = {checkpoint.step: run.read_ledger().spent(checkpoint.step)[0] for checkpoint in run.checkpoints()}
    assert sorted(spent) == [0, 4, 8, 12]
    lowered = (spent[4] + spent[8]) / 2
    proposed = json.loads(inosgd("budgets", "run", "--set", f"hospital_a={lowered}", "--json").out)
    assert (proposed["action"], proposed["step"], proposed["done"]) == ("roll back", 4, False)
    before = run.checkpoint_at(4).model_digest
    assert inosgd("budgets", "run", "--set", f"hospital_a={lowered}", "--yes").code == 0
    assert not (tmp_path / "run/model").exists()  # it has seen steps that were given up
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [0, 4]
    assert run.checkpoint_at(4).model_digest == before
    resumed = inosgd("resume", "run", "--json", "--no-report")
    assert resumed.code == 0, resumed.err
    report = json.loads(resumed.out)
    assert report["steps"] == 12
    assert report["owners"]["hospital_a"]["spent"] <= lowered
    assert reference_spending(tmp_path / "run", "hospital_a")["hospital_a"] <= lowered * 1.001


def test_nothing_is_given_back_behind_a_published_model(inosgd, tmp_path):
    train(inosgd, tmp_path)
    published = inosgd("publish", "run", "--to", "outside")
    assert published.code == 0, published.err
    assert same_bits(tmp_path / "outside", tmp_path / "run/model")
    stopped = inosgd("budgets", "run", "--set", "hospital_a=0.1", "--yes")
    assert stopped.code == 0, stopped.err
    assert "would stop" in stopped.out
    assert "stopped" in inosgd("ledger", "run").out
    resumed = inosgd("resume", "run", "--no-report")
    assert resumed.code == 2
    assert "was stopped: owner 'hospital_a'" in resumed.err
    assert json.loads(inosgd("ledger", "run", "--json").out)["published"] == 12
    assert inosgd("publish", "run", "--step", 5).code == 2


def test_an_owner_withdraws(inosgd, tmp_path, monkeypatch):
    write_study(tmp_path)
    interrupted_run(inosgd, tmp_path, monkeypatch, 6)
    spent = json.loads(inosgd("ledger", "run", "--json").out)["owners"]["hospital_b"]["spent"]
    assert inosgd("budgets", "run", "--withdraw", "hospital_b", "--yes").code == 0
    resumed = inosgd("resume", "run", "--json", "--no-report")
    assert resumed.code == 0, resumed.err
    owner = json.loads(resumed.out)["owners"]["hospital_b"]
    assert owner["examples"] == 0
    assert owner["held_out_score"] is None
    assert 0 < owner["spent"] <= spent  # on record, and no more than before


def test_an_owner_joins_with_data_of_its_own(inosgd, tmp_path, monkeypatch):
    write_study(tmp_path)
    interrupted_run(inosgd, tmp_path, monkeypatch, 6)
    (tmp_path / "new.csv").write_text(table_text(30, seed=9).replace("hospital_a", "x").replace("hospital_b", "x"))
    refused = inosgd("budgets", "run", "--add", "x=5", "--data", "new.csv")
    assert refused.code == 2
    assert "'clinic' is an owner without a budget" in refused.err
    (tmp_path / "new.csv").write_text((tmp_path / "new.csv").read_text().replace("clinic", "x"))
    assert inosgd("budgets", "run", "--add", "x=5").code == 2
    assert inosgd("budgets", "run", "--add", "x=5", "--data", "new.csv", "--yes").code == 0
    resumed = inosgd("resume", "run", "--json", "--no-report")
    assert resumed.code == 0, resumed.err
    owner = json.loads(resumed.out)["owners"]["x"]
    assert 15 < owner["examples"] < 30
    assert 0 < owner["spent"] <= 5
    (tmp_path / "new.csv").write_text(table_text(30, seed=8).replace("hospital_a", "x"))
    assert "not the file" in inosgd("resume", "run", "--no-report").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing is asked for"),
        (("--set", "clinc=2"), "did you mean 'clinic'?"),
        (("--set", "hospital_a"), "write OWNER=EPSILON"),
        (("--set", "hospital_a=-1"), "greater than 0"),
        (("--set", "hospital_a=nan"), "greater than 0"),
        (("--withdraw", "nobody"), "there is no such owner"),
        (("--add", "clinic=2"), "change it with --set"),
        (("--data", "cases.csv", "--set", "clinic=9"), "give --add"),
        (("--set", "clinic=9", "--steps", "3"), "12 steps stand"),
    ],
)
def test_bad_changes_end_in_one_error(inosgd, tmp_path, finished_run, arguments, words):
    shutil.copytree(finished_run, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "run/ledger.jsonl").read_bytes()
    outcome = inosgd("budgets", "run", *arguments, "--yes")
    assert outcome.code == 2
    assert words in outcome.err
    assert (tmp_path / "run/ledger.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    prepared = prepare(study_from(read_study(write_study(folder))))
    run = create_run(folder / "run", prepared)
    with run.lock() as locked:
        finish(locked, prepared, begin_training(locked, prepared), every=4)
    return folder


def test_prediction_of_a_table(inosgd, tmp_path, finished_run):
    header, *rows = table_text(20, seed=4).splitlines()
    (tmp_path / "new.csv").write_text("\n".join([header, *rows]) + "\n")
    model = finished_run / "run/model"
    outcome = inosgd("predict", model, "new.csv", "-o", "predictions.csv")
    assert outcome.code == 0, outcome.err
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[0] == "row,prediction,probability,probability_no,probability_yes,problem"
    assert len(lines) == 21
    assert {line.split(",")[1] for line in lines[1:]} <= {"yes", "no"}
    as_json = inosgd("predict", model, "new.csv", "--json").out.splitlines()
    assert [json.loads(line)["prediction"] for line in as_json] == [line.split(",")[1] for line in lines[1:]]
    assert "already exists" in inosgd("predict", model, "new.csv", "-o", "predictions.csv").err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age,sex\n1,f\n", "there is no column 'dose' (the model reads it)"),
        ("age,sex,dose\n1,d,0\n2,x,0\n", "column 'sex', row 1: 'd' is none of the column's categories"),
        ("age,sex,dose\n1,f,\n", "column 'dose', row 1: '' is empty"),
        ("age,sex,dose\nold,f,1\n", "column 'age', row 1: 'old' is not a number"),
        ("", "the file is empty"),
    ],
)
def test_prediction_refuses_what_it_cannot_read(inosgd, tmp_path, finished_run, text, words):
    (tmp_path / "new.csv").write_text(text)
    outcome = inosgd("predict", finished_run / "run/model", "new.csv", "-o", "predictions.csv")
    assert outcome.code == 2
    assert words in outcome.err
    assert not (tmp_path / "predictions.csv").exists()


def test_prediction_says_what_it_clamps(inosgd, tmp_path, finished_run):
    (tmp_path / "new.csv").write_text("age,sex,dose\n500,f,1\n")
    outcome = inosgd("predict", finished_run / "run/model", "new.csv")
    assert outcome.code == 0
    assert "1 value of 'age' lies outside the range" in outcome.err
    assert "there is no model" in inosgd("predict", tmp_path, "new.csv").err


def run_card(pipe, model: Path, use: str) -> None:
    """The card's own program in this process, which forgets inosgd and cannot import it; what ``use`` then shows."""
    os.chdir(model)
    for name in [name for name in sys.modules if name.partition(".")[0] == "inosgd"]:
        del sys.modules[name]
    sys.modules["inosgd"] = None
    program, names = (model / "model-card.md").read_text().split("```python\n")[1].split("```")[0], {}
    exec(program, names)
    pipe.send(eval(use, names))
    pipe.recv()


def from_card(model: Path, use: str) -> object:
    with forked(run_card, model, use) as (pipe, _):
        return pipe.recv()


def test_the_model_loads_without_inosgd(finished_run):
    """The card's own program, in a process that cannot import inosgd, gives the predictions of inosgd."""
    model = finished_run / "run/model"
    scores, classes = from_card(model, "(model(torch.tensor([[0.5, 1.0, 0.0, -0.25]])).tolist(), names)")
    assert classes == ["no", "yes"]
    saved = weights(model)
    hidden = np.tanh(saved["0.weight"] @ np.array([0.5, 1.0, 0.0, -0.25], dtype=np.float32) + saved["0.bias"])
    expected = saved["2.weight"] @ hidden + saved["2.bias"]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-5, atol=1e-6)


def test_images_in_folders_train_from_a_study_alone(inosgd, tmp_path):
    write_images(tmp_path / "pictures", count=120)
    (tmp_path / "study.toml").write_text(IMAGE_STUDY)
    outcome = inosgd("train", "study.toml", "--out", "run", "--json", "--no-report")
    assert outcome.code == 0, outcome.err
    report = json.loads(outcome.out)
    assert set(report["owners"]) == set(OWNERS)
    assert len(report["held_out"]["classes"]) == 10
    assert all(owner["spent"] <= owner["epsilon"] for owner in report["owners"].values())
    predicted = inosgd("predict", "run/model", "pictures/clinic")
    assert predicted.code == 0, predicted.err
    assert predicted.out.splitlines()[0].startswith("file,prediction,probability,probability_class_0,")
    assert predicted.out.splitlines()[1].startswith("class_0/")
    Image.new("L", (9, 9)).save(tmp_path / "small.png")
    assert "9 x 9 pixels" in inosgd("predict", "run/model", "small.png").err


def test_images_may_be_listed_in_a_table(inosgd, tmp_path):
    write_images(tmp_path / "pictures", count=60, classes=2)
    lines = ["file,label,epsilon"]
    for number, path in enumerate(sorted((tmp_path / "pictures").rglob("*.png"))):
        lines.append(f"{path.relative_to(tmp_path / 'pictures')},{path.parent.name},{2 if number % 2 else 9}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    listed = 'index = "list.csv"\ntarget = "label"\nepsilon = "epsilon"'
    owners = "owners = { hospital_a = 2.0, hospital_b = 4.0, clinic = 50.0 }\n"
    text = IMAGE_STUDY.replace('layout = "owner/class"', listed).replace(owners, "")
    (tmp_path / "study.toml").write_text(text)
    outcome = inosgd("train", "study.toml", "--out", "run", "--json", "--no-report")
    assert outcome.code == 0, outcome.err
    assert set(json.loads(outcome.out)["owners"]) == {"rows at epsilon 2", "rows at epsilon 9"}


@pytest.mark.parametrize("tokens", ["bytes", "words"])
def test_text_trains_an_lstm_and_its_model_loads_without_inosgd(inosgd, tmp_path, tokens):
    features = 'age = [0, 120]\nsex = ["f", "m"]\ndose = [-3, 3]'
    changes = [
        (features, f'note = {{ text = "{tokens}", max_length = 12, vocabulary_size = 50 }}'),
        ('name = "mlp"\narguments = { hidden = [4] }', 'name = "lstm"\narguments = { embedding = 4, hidden = 5 }'),
        ("steps = 12", "steps = 2"),
    ]
    lines = [
        "note,ill,owner",
        *(f'"feels {"bad, very" if n % 2 else "good"}",{n % 2},{OWNERS[n % 3]}' for n in range(60)),
    ]
    write_study(tmp_path, *changes, data="\n".join(lines) + "\n")
    outcome = inosgd("train", "study.toml", "--out", "run", "--json", "--no-report")
    assert outcome.code == 0, outcome.err
    model = tmp_path / "run/model"
    assert from_card(model, "tuple(model(torch.ones((1, 12), dtype=torch.long)).shape)") == (1, 2)
    (tmp_path / "new.csv").write_text('note\nfeels good\n""\n')
    assert len(inosgd("predict", model, "new.csv").out.splitlines()) == 3


def test_arrays_train_and_predict(inosgd, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((60, 8, 8)), "y": np.arange(60) % 3, "who": np.array(OWNERS)[np.arange(60) % 3]}
    np.savez(tmp_path / "a.npz", **arrays)
    data = 'kind = "npz"\npath = "a.npz"\ninputs = "x"\ntarget = "y"\nowner = "who"\nrange = [0, 1]\n'
    text = data.join(["[data]\n", "\n" + IMAGE_STUDY[IMAGE_STUDY.index("[budgets]") :]])
    (tmp_path / "study.toml").write_text(text)
    outcome = inosgd("train", "study.toml", "--out", "run", "--json", "--no-report")
    assert outcome.code == 0, outcome.err
    np.savez(tmp_path / "new.npz", x=rng.random((4, 8, 8)))
    assert len(inosgd("predict", "run/model", "new.npz").out.splitlines()) == 5
    np.savez(tmp_path / "wrong.npz", x=rng.random((4, 9, 8)))
    assert "examples of shape (9, 8), not (8, 8)" in inosgd("predict", "run/model", "wrong.npz").err


def test_unaccounted_scaling_is_said_in_every_report(inosgd, tmp_path):
    changes = [
        ("age = [0, 120]", 'age = "numeric"'),
        ('owner = "owner"', 'owner = "owner"\nunaccounted_scaling = true'),
    ]
    report = train(inosgd, tmp_path, changes=changes)
    assert report["unaccounted_scaling"] is True
    assert "UNACCOUNTED SCALING" in report["warnings"][0]
    assert "UNACCOUNTED SCALING" in (tmp_path / "run/model/model-card.md").read_text()
    saved = json.loads((tmp_path / "run/model/model.json").read_text())
    assert saved["unaccounted_scaling"] is True
    assert [column["fitted"] for column in saved["inputs"]["columns"]] == [True, False, False]
    assert "UNACCOUNTED SCALING" in inosgd("train", "study.toml", "--out", "again", "--no-report").out


def test_a_factory_runs_only_when_it_is_named_twice(inosgd, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nPath('imported').touch()\n"
        "def linear(inputs, classes, *, seed, bias=True):\n"
        "    return nn.Sequential(nn.Linear(inputs[0], classes, bias=bias))\n"
    )
    model = 'name = "mine:linear"\narguments = { bias = false }'
    write_study(tmp_path, ('name = "mlp"\narguments = { hidden = [4] }', model))
    for arguments in ((), ("--allow-factory", "mine:other")):
        assert inosgd("train", "study.toml", "--out", "run", *arguments).code == 2
    assert not (tmp_path / "imported").exists()
    trained = inosgd("train", "study.toml", "--out", "run", "--allow-factory", "mine:linear", "--json", "--no-report")
    assert trained.code == 0, trained.err
    (tmp_path / "new.csv").write_text("age,sex,dose\n5,f,1\n")
    assert "--allow-factory mine:linear" in inosgd("predict", "run/model", "new.csv").err
    assert inosgd("predict", "run/model", "new.csv", "--allow-factory", "mine:linear").code == 0
    assert "--allow-factory" in inosgd("resume", "run", "--no-report").err
    sys.modules.pop("mine", None)


def test_a_noise_scale_instead_of_steps(inosgd, tmp_path):
    report = train(inosgd, tmp_path, changes=[("steps = 12", "noise_scale = 2.0")])
    assert report["steps"] > 1
    plan = RunFolder.open(tmp_path / "run").plan()
    assert plan.at(0).noise_scale <= 2.0
    assert plan.at(0).expected_batch_size == pytest.approx(16)


def test_two_processes_cannot_train_in_one_folder(inosgd, tmp_path):
    train(inosgd, tmp_path)
    with RunFolder.open(tmp_path / "run").lock():
        for command in (("resume", "run"), ("publish", "run"), ("budgets", "run", "--set", "clinic=9", "--yes")):
            outcome = inosgd(*command)
            assert outcome.code == 2
            assert "is in use by" in outcome.err
