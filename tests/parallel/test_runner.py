"""The runner: results as they come, failures tried again and named, lost processes, clusters."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from joblib.externals.loky import get_reusable_executor

from inosgd.cli.workers import WorkerOptions
from inosgd.errors import InosgdError, InvalidArgumentError, MissingExtraError
from inosgd.parallel import runner
from inosgd.parallel import workers as workers_module
from inosgd.parallel.runner import Failure, failures_error, run_all
from inosgd.parallel.workers import Workers, connected

NAMES = [f"task {index}" for index in range(12)]


@pytest.fixture(autouse=True, scope="module")
def no_processes_left():
    yield
    get_reusable_executor().shutdown(wait=True)


def outcomes(function, tasks, workers):
    found = list(run_all(function, tasks, names=NAMES, workers=workers))
    assert len(found) == len(tasks)  # each is handed back once
    return dict(found)


def squared(number):
    return number * number


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_comes_back_once(jobs):
    assert outcomes(squared, range(7), Workers(jobs=jobs)) == {number: number**2 for number in range(7)}
    assert outcomes(squared, [], Workers(jobs=jobs)) == {}


def waits(seconds):
    time.sleep(seconds)
    return seconds


def test_results_come_in_the_order_in_which_they_are_ready():
    found = [index for index, _ in run_all(waits, [1.5, 0.0, 0.0], names=NAMES, workers=Workers(jobs=2))]
    assert found == [1, 2, 0]


def counted(task):
    """Leaves a mark at each call and fails until there are ``task[1]`` of them."""
    folder, needed, error = task
    (folder / f"{os.getpid()}-{time.perf_counter_ns()}").touch()
    if len(list(folder.iterdir())) < needed:
        raise error("not yet")
    return needed


@pytest.mark.parametrize(
    ("needed", "error", "calls", "failed"),
    [(3, OSError, 3, False), (4, OSError, 3, True), (3, InvalidArgumentError, 1, True), (3, MemoryError, 3, False)],
)
def test_failed_tasks_are_tried_again_unless_the_request_is_wrong(needed, error, calls, failed, tmp_path):
    found = outcomes(counted, [(tmp_path, needed, error)], Workers(jobs=1, retries=2))[0]
    assert len(list(tmp_path.iterdir())) == calls
    assert isinstance(found, Failure) is failed
    if failed:
        assert (found.task, found.attempts) == ("task 0", calls)
        assert found.error == f"{error.__name__}: not yet"


def test_without_retries_a_task_is_tried_once(tmp_path):
    assert outcomes(counted, [(tmp_path, 2, OSError)], Workers(jobs=1, retries=0))[0].attempts == 1


def dies(task):
    """Kills its own process, the first ``times`` times."""
    folder, number, times = task
    place = folder / str(number)
    place.mkdir(exist_ok=True)
    (place / str(time.perf_counter_ns())).touch()
    if len(list(place.iterdir())) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_killed_process_costs_nobody_a_result(tmp_path):
    found = outcomes(dies, [(tmp_path, number, int(number == 1)) for number in range(4)], Workers(jobs=2))
    assert found == {number: number for number in range(4)}
    assert len(list((tmp_path / "1").iterdir())) == 2


class LostError(Exception):
    """A process is gone."""


@dataclasses.dataclass(frozen=True)
class FakeWorkers:
    """Workers as joblib has them, in this process: what was handed over is done in any order, a lost one ends all."""

    jobs: int
    retries: int
    draw: random.Random

    def parallel(self, *, apart=False):
        return self._outcomes

    def _outcomes(self, calls):
        calls, under_way = iter(calls), []
        while True:
            under_way += itertools.islice(calls, self.jobs - len(under_way))
            if not under_way:
                return
            function, arguments, options = under_way.pop(self.draw.randrange(len(under_way)))
            if arguments[1].pop(0):
                raise LostError
            yield function(*arguments, **options)


@given(
    kills=st.lists(st.lists(st.booleans(), max_size=6), max_size=8),
    jobs=st.integers(1, 4),
    retries=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_whoever_kills_processes_is_named_and_nobody_else(kills, jobs, retries, seed):
    """Each task has its own list: whether its process is lost at its first call, its second, ..."""
    tasks = [[*each, *[False] * 40] for each in kills]
    found = outcomes(len, tasks, FakeWorkers(jobs, retries, random.Random(seed)))
    for index, each in enumerate(kills):
        if not any(each):
            assert not isinstance(found[index], Failure)
        if isinstance(found[index], Failure):
            assert "its worker was lost: LostError" in found[index].error
            assert found[index].attempts == retries + 1 <= sum(each)


def test_the_error_at_the_end_names_every_failure():
    failures = [Failure("a", "OSError: full", attempts=3), Failure("b", "OSError: full"), Failure("c", "no plan")]
    assert str(failures_error(failures, 9)) == (
        "3 of 9 trainings failed, the others are kept: a (tried 3 times), b: OSError: full; c: no plan"
    )


def test_a_consumer_that_stops_leaves_the_rest_undone(tmp_path):
    tasks = [(tmp_path, 0, OSError)] * 2000
    for _ in run_all(counted, tasks, names=[str(row) for row in range(2000)], workers=Workers(jobs=2)):
        break  # warnings are errors: cancelling what is under way must not be one
    assert len(list(tmp_path.iterdir())) < 2000


@pytest.mark.parametrize(
    ("thread", "error", "reported"),
    [
        (runner.MANAGER_THREAD, KeyError(10), False),
        (runner.MANAGER_THREAD, OSError(), True),
        ("mine", KeyError(), True),
    ],
)
def test_only_a_cancelled_task_that_is_looked_for_goes_unreported(thread, error, reported, monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    def looks_for_a_task():
        raise error

    def outcomes():
        try:
            yield
        finally:
            looking = threading.Thread(target=looks_for_a_task, name=thread)
            looking.start()
            looking.join()

    with runner._closed_at_end(outcomes()) as begun:
        next(begun)
    assert [found.exc_type for found in seen] == ([type(error)] if reported else [])
    assert threading.excepthook == seen.append


# Clusters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": "slurm"}, "backend='slurm': choose one of local, ray, dask"),
        ({"jobs": 0}, "jobs=0"),
        ({"retries": -1}, "retries=-1"),
        ({"address": "auto"}, "address='auto': local processes have none"),
    ],
)
def test_bad_workers_are_refused(arguments, words):
    with pytest.raises(InvalidArgumentError, match=words), connected(**arguments):
        pass


@pytest.mark.parametrize(("backend", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_backend_that_is_not_installed_names_its_extra(backend, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    expected = rf"{package} is not installed: pip install 'inosgd\[cluster\]'"
    with pytest.raises(MissingExtraError, match=expected), connected(backend):
        pass


def test_a_cluster_that_is_not_there_is_named(monkeypatch):
    class Absent:
        def is_initialized(self):
            return False

        def init(self, **_):
            raise ConnectionError("nobody answers")

    monkeypatch.setattr(workers_module, "_installed", lambda *_: Absent())
    with (
        pytest.raises(InosgdError, match="no cluster was reached at 'ray://far:1': nobody"),
        connected("ray", address="ray://far:1"),
    ):
        pass


@pytest.mark.parametrize("continues", [True, False])
def test_an_interruption_says_whether_anything_is_kept(continues, capsys):
    expected = typer.Exit if continues else KeyboardInterrupt
    with pytest.raises(expected), WorkerOptions(jobs=1).connected(continues=continues):
        raise KeyboardInterrupt
    assert ("finished trainings are kept" in capsys.readouterr().err) is continues


ON_A_CLUSTER = """
import sys
from pathlib import Path
from tests.parallel.test_runner import check_cluster

if __name__ == "__main__":
    check_cluster(sys.argv[1], Path(sys.argv[2]))
    print("the same")
"""


def small_study():
    from inosgd.study.built_in import STUDIES

    return STUDIES["digits"].changed({"steps": 4, "accountant": "rdp"})


def trained(workers):
    """Every number of two trainings with two seeds, but for how long they took."""
    from inosgd.compare.comparison import Task, train_task
    from inosgd.paper.experiments import methods

    tasks = [Task(small_study(), row, seed) for row in methods("sample")[1:] for seed in (0, 1)]
    found = outcomes(train_task, tasks, workers)
    return {index: {**result.to_json(), "seconds": 0.0} for index, result in found.items()}


def check_cluster(backend, folder):
    """Trainings, a task that fails twice and one that loses its process, on two local workers of a cluster."""
    with connected(backend, jobs=2) as workers:
        assert trained(workers) == trained(Workers(jobs=1))
        assert os.getpid() not in outcomes(process, range(4), workers).values()
        (folder / "counted").mkdir()
        assert outcomes(counted, [(folder / "counted", 3, OSError)], workers) == {0: 3}
        (folder / "dies").mkdir()
        found = outcomes(dies, [(folder / "dies", number, int(number == 1)) for number in range(4)], workers)
        assert found == {number: number for number in range(4)}


def process(_):
    return os.getpid()


@contextmanager
def program(text, *arguments):
    """A program of its own: clusters leave threads, settings and open sockets in the process that starts them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["RAY_worker_niceness"] = "0"  # Ray's workers would wait for everything else on a busy machine
    yield subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.long  # `FakeWorkers` lose processes and results as clusters do
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_cluster_gives_the_same_results_as_local_processes(backend, tmp_path):
    pytest.importorskip("ray" if backend == "ray" else "distributed", reason=f"the extra {backend} is not installed")
    with program(ON_A_CLUSTER, backend, tmp_path) as ended:
        assert ended.returncode == 0, ended.stderr[-2000:]
        assert ended.stdout.strip().endswith("the same")
