"""What a training leaves behind and says aloud: nothing of a training example, its index, its loss or its norm.

Planted: numbers and names that occur nowhere else, in single training rows. Every file of the run, everything that was
printed and every error is searched for them, as text and as the bytes of a number.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
import struct
from pathlib import Path

import numpy as np
import pytest

from inosgd import SecureSource, TrainingState, errors, train_step
from inosgd.mechanism import BoundedSum
from inosgd.order import Candidates
from inosgd.runs.saving import write_checkpoint
from inosgd.study.data import held_out_rows, load_data
from inosgd.study.from_file import study_from
from inosgd.study.reading import read_study
from inosgd.study.running import prepare
from tests.study.writers import OWNERS, STUDY, table_text

ROWS = 90
DOSES = [1.7302518, -2.6180339, 0.5772156]
CHANGES = (
    ("dose = [-3, 3]", 'dose = [-3, 3]\nnote = ["common", "quixotic_row_marker"]'),
    ("learning_rate = 2.0", "learning_rate = 2.0\n\n[evaluation]\nevery = 4"),
)


def planted_table() -> tuple[str, list[int]]:
    """The table with planted doses and one planted note, all in rows that are trained on."""
    lines = table_text(ROWS).splitlines()
    trained = np.flatnonzero(~held_out_rows(ROWS, 0.25, 2))[5 : 5 + len(DOSES)].tolist()
    rows = [line.split(",") for line in lines[1:]]
    for row, dose in zip(trained, DOSES, strict=True):
        rows[row][2] = f"{dose}"
    notes = ["quixotic_row_marker" if row == trained[0] else "common" for row in range(ROWS)]
    body = [",".join([*row, note]) for row, note in zip(rows, notes, strict=True)]
    return "\n".join([lines[0] + ",note", *body]) + "\n", trained


@pytest.fixture
def study(tmp_path):
    text = STUDY
    for old, new in CHANGES:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "cases.csv").write_text(planted_table()[0], encoding="utf-8")
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def forms_of(number: float) -> list[bytes]:
    """A number as text, and as the bytes of its usual types; scaled to -1 to 1 as well."""
    numbers = [number, number / 3]
    shortest = [text for each in numbers for text in (f"{abs(each):.5g}".encode(), str(abs(each))[:6].encode())]
    stored = [struct.pack(kind, each) for each in numbers for kind in ("<f", "<d")]
    return [*shortest, *stored]


def traces(content: bytes) -> list[bytes]:
    """Every planted value that ``content`` holds."""
    planted = [form for dose in DOSES for form in forms_of(dose)]
    return [form for form in planted if form in content]


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", [[], ["--seed", "3"]], ids=["secure", "seeded"])
def test_a_run_folder_and_its_output_hold_nothing_planted(study, seed, inosgd, tmp_path):
    outcome = inosgd("train", study, "--out", tmp_path / "run", *seed)
    assert outcome.code == 0, outcome.err
    found = {name: traces(content) for name, content in everything_in(tmp_path / "run").items()}
    assert not {name: hits for name, hits in found.items() if hits}
    assert not traces((outcome.out + outcome.err).encode())
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    values = (tmp_path / "cases.csv").read_bytes()
    assert len({dose for dose in DOSES if f"{dose}".encode() in values}) == 3  # the control: they are in the data


def test_the_search_finds_what_is_there(study, tmp_path):
    """The control: the same search over what a training holds in memory finds every planted value."""
    data = load_data(read_study(study))
    content = data.examples.inputs.numpy().tobytes()
    assert sum(struct.pack("<f", dose / 3) in content for dose in DOSES) == 3
    assert len(traces(content + (tmp_path / "cases.csv").read_bytes())) >= 6


def test_later_commands_say_nothing_planted_either(study, inosgd, tmp_path):
    run = tmp_path / "run"
    assert inosgd("train", study, "--out", run).code == 0
    for arguments in (
        ["ledger", run],
        ["resume", run],
        ["publish", run, "--out", tmp_path / "given"],
        ["budgets", run],
    ):
        outcome = inosgd(*arguments)
        assert not traces((outcome.out + outcome.err).encode()), arguments
    for content in everything_in(run).values():
        assert not traces(content)


def test_no_file_of_a_run_holds_losses_norms_indices_or_batches(study, inosgd, tmp_path):
    """By name: no key of any JSON file speaks of training examples."""
    run = tmp_path / "run"
    assert inosgd("train", study, "--out", run).code == 0
    names: set[str] = set()

    def collect(tree) -> None:
        if isinstance(tree, dict):
            names.update(tree)
            for value in tree.values():
                collect(value)
        elif isinstance(tree, list):
            for value in tree:
                collect(value)

    for path in run.rglob("*.json*"):
        for line in path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            collect(json.loads(line))
    assert {"step", "sampling_rates", "format"} <= names  # the control: keys are found
    forbidden = re.compile(
        r"train_loss|training_loss|grad|norm|indices|batch_size$|not_finite|assignment", re.IGNORECASE
    )
    allowed = {"expected_batch_size", "norm_to_threshold"}  # the second is of held-out examples
    assert not {name for name in names if forbidden.search(name)} - allowed


def test_everything_in_a_run_is_for_its_user_alone(study, inosgd, tmp_path):
    """Whatever the user's mask allows others by default."""
    before = os.umask(0)
    try:
        assert inosgd("train", study, "--out", tmp_path / "run").code == 0
    finally:
        os.umask(before)
    run = tmp_path / "run"
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.lstat().st_mode) for path in [run, *run.rglob("*")]}
    assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def test_no_key_of_a_finished_secure_run_is_on_disk(study, inosgd, tmp_path):
    assert inosgd("train", study, "--out", tmp_path / "run").code == 0
    for path in (tmp_path / "run").rglob("streams.json"):
        states = json.loads(path.read_text(encoding="utf-8"))
        assert {state["kind"] for state in states.values()} == {"secure"}
        assert not [state["key"] for state in states.values() if state["key"] is not None]


def test_no_plain_checksum_of_the_data_is_on_disk(study, inosgd, tmp_path):
    """With one, whoever knows a table but for a field tries values until the checksum fits."""
    run, data = tmp_path / "run", tmp_path / "cases.csv"
    assert inosgd("train", study, "--out", run).code == 0
    digest = hashlib.sha256(data.read_bytes())
    plain = [digest.hexdigest().encode()[:12], digest.digest()[:6]]
    for name, content in everything_in(run).items():
        assert not [form for form in plain if form in content], name
    with data.open("a", encoding="utf-8") as file:
        file.write("50,f,0.1,yes,clinic,common\n")
    refused = inosgd("resume", run)
    assert refused.code == 2
    assert "cases.csv: it is not the file that this run began with" in refused.err
    now = hashlib.sha256(data.read_bytes()).hexdigest()
    assert not [form for form in (digest.hexdigest()[:12], now[:12]) if form in refused.err]
    key = (run / "data.key").read_bytes()  # the control: with the key, and only with it, guesses can be tested
    found = json.loads((run / "run.json").read_text(encoding="utf-8"))["description"]["fingerprints"]
    assert found == {"cases.csv": hmac.digest(key, digest.hexdigest().encode(), "sha256").hex()}
    assert not [name for name, content in everything_in(run).items() if key in content and name != "data.key"]


def test_descriptions_of_sensitive_values_hold_no_content(study, tmp_path):
    """What a log line, or a traceback that shows the values of variables, would say of a training."""
    prepared = prepare(study_from(read_study(study)))
    trainer, rows = prepared.trainer, np.arange(60)
    with trainer.engine.on(prepared.built.model, trainer.losses, trainer.store.take(rows)) as gradients:
        measured = gradients.measure()
        values = [
            prepared, trainer, trainer.store, trainer.owners, gradients, measured,
            Candidates(rows, rows, measured.losses, measured.grad_norms),
            BoundedSum(gradients.weighted_sum(np.ones(60)), np.ones(1)),
        ]  # fmt: skip
    state = TrainingState.start(trainer, prepared.built.model, prepared.built.optimizer, SecureSource())
    checkpoint = write_checkpoint(tmp_path, state)
    shown = " ".join(map(repr, [*values, checkpoint, state]))
    numbers = [f"{value:.4f}" for value in (*measured.losses[:9], *measured.grad_norms[:9])]
    assert not traces(shown.encode())
    assert not [text for text in numbers if text in shown]
    assert "tensor(" not in shown.replace("Parameter containing:\ntensor(", "")
    keys = [fields["key"] for fields in checkpoint.streams.values()]
    assert len(keys) == 5  # the control: there is something to hide
    assert not [key for key in keys if key in shown]


def test_errors_of_a_failing_model_hold_nothing_planted(study, tmp_path, engine_tries_models):
    """Every error of ours that a batch can cause, with planted values in the batch."""
    prepared = prepare(study_from(read_study(study)))
    for number, spoil in enumerate((lambda x: x.mean(), lambda x: x[:-1], lambda x: x.long(), lambda x: x + x.sum())):

        def losses(model, batch, spoil=spoil):
            return spoil((model(batch[0]) ** 2).sum(-1) + batch[0].sum(-1))

        trainer = type(prepared.trainer)(
            prepared.trainer.plan, prepared.trainer.owners, prepared.trainer.store, losses, prepared.trainer.method
        )
        state = TrainingState.start(trainer, prepared.built.model, prepared.built.optimizer, SecureSource())
        with pytest.raises(errors.InosgdError) as caught:
            for _ in range(3):
                train_step(trainer, state)
        assert not traces(str(caught.value).encode()), number


def test_a_run_that_fails_before_its_first_step_leaves_nothing(study, inosgd, tmp_path):
    text = study.read_text(encoding="utf-8").replace("hospital_a = 1.0", "hospital_x = 1.0")
    study.write_text(text, encoding="utf-8")
    outcome = inosgd("train", study, "--out", tmp_path / "run")
    assert outcome.code != 0
    assert not (tmp_path / "run").exists()
    assert OWNERS[0] in outcome.err
