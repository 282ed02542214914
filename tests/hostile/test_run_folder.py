"""Every file of a run, edited, removed, or replaced by an older one: what SECURITY.md says of it is what happens.

The run has lived: trained, published, two owners joined, trained on. What a file was at earlier times is kept, and a
second run beside it has files of the same names. The accountants are not the subject here and are stood in for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inosgd.cli.program import app
from inosgd.cli.report import report_at_end
from inosgd.cli.studies import study_of_run
from inosgd.errors import CheckpointError, InosgdError, InvalidArgumentError, LedgerError
from inosgd.owners import Budget
from inosgd.runs.files import NOT_COVERED, YARDSTICK
from inosgd.runs.folder import RunFolder
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.runs.resuming import train_durably
from inosgd.runs.verification import verify_run
from inosgd.study.data import joined_data
from inosgd.study.from_file import study_from
from inosgd.study.joining import joined_file
from inosgd.study.reading import read_study
from inosgd.study.running import begin_training, create_run, finish, prepare, prepare_again, resume_training
from tests.study.writers import table_text, write_study

ROOT = Path(__file__).parents[2]
OPERATIONS = ("edited", "removed", "replaced")


def table() -> dict[str, dict[str, str]]:
    """The table of files in SECURITY.md: for each name what is noticed."""
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith("| file of a run |"))
    assert [cell.strip() for cell in lines[start].strip("|").split("|")][2:] == list(OPERATIONS)
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([^`]+)`", cells[0]):
            rows[name] = dict(zip(OPERATIONS, cells[2:], strict=True))
    return rows


TABLE = table()


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def join(run: RunFolder, name: str, steps: int) -> None:
    """An owner joins with data of its own, and training goes on."""
    path = run.path.parent / f"{name}.csv"
    text = table_text(30, seed=len(name))
    path.write_text(re.sub("hospital_a|hospital_b|clinic", name, text), encoding="utf-8")
    budgets = {name: Budget(epsilon=5.0, delta=1e-5)}
    study = study_of_run(run)
    size = int(joined_data(study.file, study.split(0), path, budgets).owners.table.sizes.sum())
    changes = Changes(budgets=budgets, sizes={name: size})
    with run.lock() as locked:
        config = replace(run.plan().config, steps=steps)
        carry_out(locked, propose(run, changes, config, verify=False), joined_file(run, path, budgets))


def go_on(run: RunFolder, every: int = 4) -> None:
    with run.lock() as locked:
        prepared = prepare_again(run, study_of_run(run))
        finish(locked, prepared, resume_training(locked, prepared).state, every=every)


def begun(folder: Path, steps: int) -> RunFolder:
    folder.mkdir(exist_ok=True)
    prepared = prepare(study_from(read_study(write_study(folder))))
    run = create_run(folder / "run", prepared)
    with run.lock() as locked:
        state = begin_training(locked, prepared)
        train_durably(locked, prepared.trainer, state, every=4, steps=steps)
        state.ledger.close()
    return run


class Life:
    """A run folder, and the files that it had at earlier times or that another run has, the most recent first."""

    def __init__(self, run: RunFolder, earlier: list[dict[str, bytes]]) -> None:
        self.run, self.earlier = run, earlier

    def other(self, name: str) -> bytes:
        """What stood under a name at another time, in another checkpoint or plan, or in another run."""
        now = files(self.run.path)
        before = [each[name] for each in self.earlier if name in each]
        siblings = [content for place, content in now.items() if Path(place).name == Path(name).name]
        plans = [content for place, content in now.items() if place.startswith("plans/")]
        return next((each for each in (*before, *siblings, *plans) if each != now[name]), b"")


@pytest.fixture(scope="module")
def life(tmp_path_factory) -> Life:
    folder = tmp_path_factory.mktemp("life")
    other = begun(folder / "other", 12)
    assert report_at_end(other.path) is not None
    run, earlier = begun(folder / "it", 8), [files(other.path)]
    for name, steps in (("x", 14), ("yy", 16)):
        earlier.insert(0, files(run.path))
        go_on(run)
        earlier.insert(0, files(run.path))
        join(run, name, steps)
    with run.lock() as locked:
        locked.mark_published(8)
    earlier.insert(0, files(run.path))
    go_on(run)
    shutil.copy(other.path / "report.html", run.path)
    (run.path / YARDSTICK).write_text('{"score": 0.5}')
    return Life(run, earlier)


def copied(life: Life, folder: Path) -> RunFolder:
    shutil.copytree(life.run.path, folder / "run")
    return RunFolder.open(folder / "run")


def rows_of(name: str) -> list[str]:
    return [row for row in TABLE if fnmatch(name, row)]


def judged(run: RunFolder) -> str:
    """noticed, noted or not noticed."""
    try:
        report = verify_run(RunFolder.open(run.path))
    except InosgdError:
        return "noticed"
    return "noticed" if not report.good else "noted" if report.notes else "not noticed"


def test_a_run_that_nobody_touched_verifies_without_a_word(life):
    report = verify_run(life.run)
    assert report.findings == ()
    assert report.notes == ()


def test_the_table_names_every_file_of_a_run_once_and_nothing_else(life):
    found = {name: rows_of(name) for name in files(life.run.path)}
    assert {name: rows for name, rows in found.items() if len(rows) != 1} == {}
    assert {row for rows in found.values() for row in rows} == set(TABLE)
    uncovered = {name for name, row in TABLE.items() if set(row.values()) == {"not noticed"}}
    assert uncovered == set(NOT_COVERED)


def edited(path: Path, content: bytes) -> None:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)


def cut(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) // 2])


def longer(path: Path, content: bytes) -> None:
    path.write_bytes(content + b"\n")


def linked(path: Path, content: bytes) -> None:
    """To bytes that are almost the same."""
    place = next(parent for parent in path.parents if parent.name == "run").with_name("elsewhere")
    place.write_bytes(content[:-1])
    path.symlink_to(place)


def linked_to_nothing(path: Path, content: bytes) -> None:
    path.symlink_to(path.parent / "nowhere")


def spoils(life: Life, name: str, operation: str) -> list[Callable[[Path, bytes], None]]:
    """The ways in which a file is spoiled; it is gone before each."""
    if operation == "removed":
        return [lambda path, content: None, linked_to_nothing]
    if operation == "replaced":
        other = life.other(name)
        return [lambda path, content: path.write_bytes(other)]
    return [edited, cut] if name in ("ledger.jsonl", "position.json") else [edited, cut, longer, linked]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("row", TABLE)
def test_what_the_table_says_is_what_happens(life, row, operation, tmp_path):
    run = copied(life, tmp_path)
    for number, name in enumerate(name for name in files(run.path) if fnmatch(name, row)):
        path = run.path / name
        content = path.read_bytes()
        ways = spoils(life, name, operation)
        for spoil in ways if number == 0 else ways[:1]:
            path.unlink()
            spoil(path, content)
            assert judged(run) == TABLE[row][operation], (name, spoil)
            path.unlink(missing_ok=True)
            path.write_bytes(content)
    assert judged(run) == "not noticed"  # the control: all of it was put back


@pytest.mark.parametrize(
    "name", ["run.json", "plans/plan-0001.json", "plans/plan-0003.json", "joined.json", "data.key"]
)
def test_resume_refuses_what_it_would_go_on_from(life, name, tmp_path):
    run = copied(life, tmp_path)
    path = run.path / name
    content = path.read_bytes()
    for spoil in (edited, linked, linked_to_nothing):
        path.unlink()
        spoil(path, content)
        with pytest.raises(InosgdError, match=re.escape(Path(name).name)) as caught:
            go_on(run)
        assert "restore" in str(caught.value)
        path.unlink()
        path.write_bytes(content)
    go_on(run)


def forged(run: RunFolder) -> Path:
    """The newest checkpoint with another step, all digests that it holds made to fit."""
    path = run.checkpoints()[-1].path
    fields = json.loads((path / "state.json").read_bytes())
    fields["step"] -= 1
    (path / "state.json").write_text(json.dumps(fields))
    return path


def older(run: RunFolder) -> Path:
    before, newest = run.checkpoints()[-2:]
    shutil.rmtree(newest.path)
    shutil.copytree(before.path, newest.path)
    return newest.path


def gone(run: RunFolder) -> Path:
    newest = run.checkpoints()[-1].path
    shutil.rmtree(newest)
    return newest


@pytest.mark.parametrize("attack", [forged, older, gone])
def test_resume_does_not_go_on_from_a_checkpoint_that_the_ledger_does_not_know(tmp_path, attack):
    """It goes on from the one before, says so, and reaches the same model."""
    begun(tmp_path, 8)
    shutil.copytree(tmp_path / "run", tmp_path / "twin")
    run, twin = RunFolder.open(tmp_path / "run"), RunFolder.open(tmp_path / "twin")
    go_on(twin)
    path = attack(run)
    (finding,) = verify_run(run).findings
    assert path.name in finding.message
    assert "restore it from a copy" in finding.message
    with run.lock() as locked:
        prepared = prepare_again(run, study_of_run(run))
        resumed = resume_training(locked, prepared)
        assert resumed.state.step == 4
        assert path.name in resumed.messages[0]
        finish(locked, prepared, resumed.state, every=4)
    assert files(run.path)["model/model.safetensors"] == files(twin.path)["model/model.safetensors"]
    assert verify_run(run).good
    for path in run.path.rglob("streams.json"):
        assert {state["key"] for state in json.loads(path.read_bytes()).values()} == {None}


def test_a_checkpoint_that_the_ledger_does_not_know_is_named_and_stops_a_resume(life, tmp_path):
    run = copied(life, tmp_path)
    newest = run.checkpoints()[-1]
    foreign = newest.path.with_name("step-00000099.record-00000099")
    shutil.copytree(newest.path, foreign)
    (finding,) = verify_run(run).findings
    assert foreign.name in finding.message
    with pytest.raises(CheckpointError, match=foreign.name):
        go_on(run)


@pytest.mark.parametrize("place", ["plans/plan-0009.json", "model/extra.py", "checkpoints/notes.txt"])
def test_strangers_in_the_rooms_of_a_run_are_found_and_elsewhere_noted(life, place, tmp_path):
    run = copied(life, tmp_path)
    (run.path / place).write_text("{}")
    (finding,) = verify_run(run).findings
    assert finding.message.startswith(f"{place}: the ledger does not know it")
    (run.path / place).rename(run.path / "notes.txt")
    report = verify_run(run)
    assert report.good
    assert report.notes == ("notes.txt is not of this run: the ledger does not know it",)


def test_a_ledger_without_its_last_record_is_noticed_whatever_the_record_is(life, tmp_path):
    """A published model, a change or a stop: nothing but position.json has seen them."""
    lines = life.run.ledger_path.read_bytes().splitlines(keepends=True)
    kinds = {json.loads(line)["kind"] for line in lines}
    assert kinds == {"ledger", "terms", "step", "files", "checkpoint", "change", "published", "data"}
    run = copied(life, tmp_path)
    with run.lock() as locked:
        locked.mark_published(12)
    whole = run.ledger_path.read_bytes()
    run.ledger_path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    (finding,) = verify_run(run).findings
    assert "its last records were lost" in finding.message
    with pytest.raises(LedgerError, match="its last records were lost"):
        go_on(run)
    (run.path / "position.json").unlink()
    with pytest.raises(LedgerError, match=r"position.json is missing"):
        go_on(run)
    run.ledger_path.write_bytes(whole)
    (fix,) = [re.search(r"write this into position.json: (\{.*\})", each.message) for each in verify_run(run).findings]
    (run.path / "position.json").write_text(fix[1])
    assert verify_run(run).good


def test_a_published_model_that_is_lost_stays_a_finding(life, tmp_path):
    run = copied(life, tmp_path)
    shutil.rmtree(run.checkpoint_at(8).path)
    assert any("published after step 8" in each.message for each in verify_run(run).findings)
    go_on(run)  # its loss is recorded, and its publication is not forgotten
    (finding,) = verify_run(run).findings
    assert "the model that was published after step 8 is not there" in finding.message


@pytest.mark.parametrize(
    "name",
    ["run.json", "position.json", "plans/plan-0002.json", "model/model.safetensors", "checkpoints/{}/state.json"],
)
def test_a_pipe_in_the_place_of_a_file_is_noticed_and_not_waited_for(life, name, tmp_path):
    run = copied(life, tmp_path)
    path = run.path / name.format(run.checkpoints()[0].path.name)
    path.unlink()
    os.mkfifo(path)
    assert judged(run) == "noticed"


def test_a_spoiled_model_is_not_handed_out(life, tmp_path):
    run = copied(life, tmp_path)
    card = run.path / "model" / "model-card.md"
    card.write_text(card.read_text().replace("epsilon 1 to", "epsilon 0.1 to"))
    outcome = CliRunner().invoke(app, ["publish", str(run.path)])
    assert isinstance(outcome.exception, InvalidArgumentError)
    assert "model/model-card.md is not the file that the ledger knows" in str(outcome.exception)
    assert run.read_ledger().published == 16  # to be on the safe side, it counts as published


@pytest.mark.parametrize("name", ["plans/plan-0001.json", "run.json", "model/model.json", "checkpoints"])
def test_the_exit_code_says_it(life, name, tmp_path):
    run = copied(life, tmp_path)
    path = run.path / name
    path = run.checkpoints()[-1].model_path if name == "checkpoints" else path
    edited(path, path.read_bytes())
    outcome = CliRunner().invoke(app, ["ledger", str(run.path), "--verify", "--json"])
    assert outcome.exit_code == 1
    said = outcome.stdout if isinstance(outcome.exception, SystemExit) else str(outcome.exception)
    assert path.name in said
    assert "restore" in said
