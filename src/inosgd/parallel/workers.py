"""Workers: where many trainings are carried out, on this machine or on a Ray or Dask cluster.

    with connected("ray", address="auto") as workers:
        for index, result in run_all(function, tasks, names=names, workers=workers):
            ...

A cluster is found where its users expect it: by the address that is given, else by ``RAY_ADDRESS`` or
``DASK_SCHEDULER_ADDRESS``; without either a small one is started on this machine, and ended with the block. Its nodes
need the same versions of inosgd and torch, and the data at the same paths. Training data and everything computed from
them then live in the cluster's memory: use one that you would keep the data on. Where it asks for a token or for
certificates, give them as Ray and Dask document it; nothing of that passes through here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from inosgd import _validate
from inosgd._extras import needs
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.parallel.clusters import DaskTasks, RayTasks

with needs("data"):
    import joblib

RETRIES = 2
"""How often a task that failed is tried again."""


@dataclass(frozen=True)
class Workers:
    """Who carries out tasks.

    Attributes:
        backend: One of `BACKENDS`; other than "local" only inside `connected`.
        jobs: How many tasks at a time; None for one per core, or for all of a cluster.
        retries: How often a task that failed is tried again.
    """

    backend: str = "local"
    jobs: int | None = None
    retries: int = RETRIES

    def __post_init__(self) -> None:
        _validate.one_of(BACKENDS, backend=self.backend)
        if self.jobs is not None:
            _validate.whole(1, jobs=self.jobs)
        _validate.whole(0, retries=self.retries)

    def parallel(self, *, apart: bool = False) -> joblib.Parallel:
        """Tasks at a time as joblib has it; results come as they are ready.

        A task is handed over only when a worker is free for it, so that one which was handed over and has not come
        back was being worked on. ``apart``: never in this process, which would share the task's end.
        """
        jobs = self.jobs or (os.cpu_count() or 1 if self.backend == "local" else -1)
        return joblib.Parallel(
            n_jobs=max(jobs, 2) if apart and jobs > 0 else jobs,
            backend=BACKENDS[self.backend].engine(),
            return_as="generator_unordered",
            pre_dispatch="n_jobs",
            batch_size=1,
        )


@contextmanager
def connected(
    backend: str = "local", *, jobs: int | None = None, address: str | None = None, retries: int = RETRIES
) -> Iterator[Workers]:
    """Workers of ``backend``, connected to inside the block.

    Args:
        backend: "local" for processes of this machine, "ray" or "dask" for a cluster.
        jobs: How many tasks at a time; by default one per core, or all that the cluster can carry.
        address: Of the cluster, as Ray ("auto", "host:6379") or Dask ("tcp://host:8786") writes it.
        retries: How often a task that failed is tried again.

    Raises:
        InvalidArgumentError: If the backend is unknown or not installed.
        InosgdError: If the cluster cannot be reached.
    """
    workers = Workers(backend, jobs, retries)
    if backend == "local" and address is not None:
        raise InvalidArgumentError(f"address={address!r}: local processes have none; name a backend: ray or dask")
    with BACKENDS[backend].connect(jobs, address):
        yield workers


def _local(jobs: int | None, address: str | None) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _ray(jobs: int | None, address: str | None) -> Iterator[None]:
    """A connection to Ray; one that was there before is used and left as it was."""
    ray = _installed("ray")
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a private study is reported elsewhere
    known = address or os.environ.get("RAY_ADDRESS") or "local"  # never one that merely happens to run here
    own = {"num_cpus": jobs, "include_dashboard": False} if known == "local" else {}
    with _reaching("ray", known):
        ray.init(address=known, log_to_driver=False, logging_level="error", **own)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _dask(jobs: int | None, address: str | None) -> Iterator[None]:
    """A connection to Dask; a local cluster has processes of one thread each."""
    distributed, dask = _installed("distributed"), _installed("dask")
    known = address or dask.config.get("scheduler-address", None)
    with _reaching("dask", known):
        client = (
            distributed.Client(known)
            if known
            else distributed.Client(n_workers=jobs or os.cpu_count(), threads_per_worker=1, dashboard_address=None)
        )
    with client:
        yield


class _Backend(NamedTuple):
    connect: Callable[[int | None, str | None], AbstractContextManager[None]]
    engine: Callable[[], Any]


BACKENDS = {
    "local": _Backend(_local, lambda: "loky"),
    "ray": _Backend(_ray, RayTasks),
    "dask": _Backend(_dask, DaskTasks),
}
"""Where trainings can be carried out: how to connect, and what joblib is given."""

LOCAL = Workers()
"""One process per core of this machine."""


def _installed(package: str) -> Any:
    with needs("cluster"):
        return importlib.import_module(package)


@contextmanager
def _reaching(backend: str, address: str | None) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        where = "" if address is None else f" at {address!r}"
        raise InosgdError(f"backend={backend!r}: no cluster was reached{where}: {error}") from error
