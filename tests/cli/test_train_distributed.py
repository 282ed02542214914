"""The program on several processes, as ``torchrun`` starts it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from inosgd import training
from inosgd.cli import main
from inosgd.distributed import Peers
from inosgd.runs.folder import RunFolder
from inosgd.runs.verification import verify_run
from tests.processes import Raised, crew_of
from tests.study.writers import write_study

COMMANDS = ("inosgd.cli.train", "inosgd.cli.resume", __name__)
SAME = 5e-5
"""In float32: rounding, and the share that is left for it, over twelve steps of learning rate 2."""


def weights(folder: Path) -> np.ndarray:
    found = load_file(folder / "model.safetensors")
    return np.concatenate([found[key].ravel() for key in sorted(found)])


def run_program(peers: Peers, folder: Path, dies_at: int | None, *arguments: str) -> tuple[int, str, str]:
    """``inosgd`` in this process; the last process may kill itself in the middle of a step."""
    plain = training.importance_weights
    taken = []

    def deadly(*given):
        taken.append(0)
        if len(taken) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given)

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        patch.setenv("RANK", str(peers.rank))
        patch.setenv("WORLD_SIZE", str(peers.size))
        patch.setattr(sys, "argv", ["inosgd", *arguments])
        if dies_at is not None and peers.rank == peers.size - 1:
            patch.setattr(training, "importance_weights", deadly)
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def outcomes(crew, folder: Path, *arguments: object, dies_at: int | None = None) -> list[tuple[int, str, str] | None]:
    found = crew.run(run_program, folder, dies_at, *map(str, arguments))
    assert not [each for each in found if isinstance(each, Raised)], found
    return found


@pytest.fixture(scope="module")
def crew():
    with crew_of(3, *COMMANDS) as three:
        yield three


@pytest.mark.long  # the others start the program by themselves, in processes that have imported it
def test_torchrun_trains_a_study(inosgd, tmp_path):
    """The real launcher: one JSON object, one ledger, the model of one process."""
    write_study(tmp_path)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "inosgd"]
    command = [*launcher, "train", "study.toml", "--out", "two", "--seed", "5", "--no-report", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["steps"] == 12
    assert inosgd("train", "study.toml", "--out", "one", "--seed", 5, "--no-report").code == 0
    np.testing.assert_allclose(weights(tmp_path / "two/model"), weights(tmp_path / "one/model"), rtol=0, atol=SAME)
    run = RunFolder.open(tmp_path / "two")
    assert run.read_ledger().steps == 12
    assert verify_run(run).good


def test_only_the_first_process_speaks_and_writes(crew, tmp_path):
    write_study(tmp_path)
    found = outcomes(crew, tmp_path, "train", "study.toml", "--out", "run", "--every", 4, "--no-report")
    assert [code for code, _, _ in found] == [0, 0, 0]
    assert "Results by owner" in found[0][1]
    assert all(out == "" and err == "" for _, out, err in found[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cases.csv", "run", "study.toml"]
    assert verify_run(RunFolder.open(tmp_path / "run")).good


@pytest.mark.parametrize("where", ["in all processes", "in one process", "in the first process"])
def test_a_mistake_ends_all_processes_and_leaves_nothing(crew, tmp_path, where):
    write_study(tmp_path, *([('name = "mlp"', 'name = "mpl"')] if where == "in all processes" else []))
    if where == "in the first process":
        (tmp_path / "run").mkdir()
    found = crew.run(train_where_one_lacks_the_data, tmp_path, where == "in one process")
    assert [code for code, _, _ in found] == [2, 2, 2]
    said = {
        "in all processes": "mpl",
        "in one process": "process 1 of 3 failed",
        "in the first process": "already exists",
    }
    assert said[where] in found[0][2]
    assert all(err == "" for _, _, err in found[1:])
    assert not (tmp_path / "run/ledger.jsonl").exists()


def train_where_one_lacks_the_data(peers: Peers, folder: Path, lacks: bool) -> tuple[int, str, str]:
    study = "nothing.toml" if lacks and peers.rank == 1 else "study.toml"
    return run_program(peers, folder, None, "train", study, "--out", "run", "--no-report")


def test_a_run_of_one_process_goes_on_on_three(crew, inosgd, tmp_path, monkeypatch):
    write_study(tmp_path)
    plain, taken = training.train_step, []

    def step_or_stop(trainer, state):
        if len(taken) == 6:
            raise KeyboardInterrupt
        taken.append(0)
        return plain(trainer, state)

    with monkeypatch.context() as patched:
        patched.setattr("inosgd.training.train_step", step_or_stop)
        stopped = inosgd("train", "study.toml", "--out", "run", "--seed", 5, "--every", 4, "--no-report")
    assert stopped.code == 130
    found = outcomes(crew, tmp_path, "resume", "run", "--no-report", "--json")
    assert [code for code, _, _ in found] == [0, 0, 0], found
    assert json.loads(found[0][1])["steps"] == 12
    assert "2 recorded steps after the checkpoint are computed again" in found[0][2]
    assert inosgd("train", "study.toml", "--out", "one", "--seed", 5, "--no-report").code == 0
    np.testing.assert_allclose(weights(tmp_path / "run/model"), weights(tmp_path / "one/model"), rtol=0, atol=SAME)
    assert verify_run(RunFolder.open(tmp_path / "run")).good


def test_a_killed_process_ends_the_run_and_one_process_resumes_it(inosgd, tmp_path):
    write_study(tmp_path)
    arguments = ("train", "study.toml", "--out", "run", "--seed", 5, "--every", 4, "--no-report")
    with crew_of(3, *COMMANDS) as three:
        *alive, dead = outcomes(three, tmp_path, *arguments, dies_at=7)
    assert dead is None
    assert [code for code, _, _ in alive] == [2, 2]
    assert f"inosgd resume {tmp_path}/run" in alive[0][2]
    assert "inosgd resume RUN" in alive[1][2]
    run = RunFolder.open(tmp_path / "run")
    assert run.read_ledger().steps == 6  # the seventh has neither a record nor a release
    assert not (run.path / "model").exists()
    assert inosgd("resume", "run", "--no-report").code == 0
    assert inosgd("train", "study.toml", "--out", "one", "--seed", 5, "--no-report").code == 0
    np.testing.assert_allclose(weights(run.path / "model"), weights(tmp_path / "one/model"), rtol=0, atol=SAME)
    assert verify_run(run).good
