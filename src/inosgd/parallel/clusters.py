"""Ray and Dask for joblib, by plain tasks of theirs: each result comes back when it is ready, and each loss as well.

The backends that Ray and joblib bring along do not serve a study that keeps what is finished: Ray's cannot hand out
results before all are there, and joblib's for Dask waits forever for a task whose worker was killed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from inosgd._extras import needs

with needs("data"):
    from joblib.parallel import ParallelBackendBase


class ClusterTasks(ParallelBackendBase):  # type: ignore[misc]  # joblib is not typed
    """One task of the cluster for each call; its future is handed to joblib when it is done.

    A lost worker's task is not repeated behind our back, as far as the cluster lets us say so: the runner counts.
    """

    supports_retrieve_callback = True

    def __init__(self) -> None:
        super().__init__(nesting_level=0)
        self._running: dict[int, Any] = {}

    def effective_n_jobs(self, n_jobs: int) -> int:
        """As many as asked for, or (-1) as the cluster has cores."""
        return n_jobs if n_jobs > 0 else max(1, self._cores())

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Any:
        """Hand a call to the cluster."""
        handle, future = self._begin(func)
        self._running[id(future)] = handle
        future.add_done_callback(lambda done: self._running.pop(id(done), None))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """The result of a future that is done, or what it raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what has not come back."""
        for handle in list(self._running.values()):
            self._cancel(handle)
        self._running.clear()

    def _cores(self) -> int:
        raise NotImplementedError

    def _begin(self, func: Callable[[], Any]) -> tuple[Any, Any]:
        """What cancels the task, and its future."""
        raise NotImplementedError

    def _cancel(self, handle: Any) -> None:
        raise NotImplementedError


class RayTasks(ClusterTasks):
    """Tasks of one core each on the Ray cluster that this process is connected to."""

    def __init__(self) -> None:
        super().__init__()
        self._ray = importlib.import_module("ray")
        self._remote = self._ray.remote(num_cpus=1, max_retries=0)(_called)

    def _cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    def _begin(self, func: Callable[[], Any]) -> tuple[Any, Any]:
        reference = self._remote.remote(func)
        return reference, reference.future()

    def _cancel(self, handle: Any) -> None:
        self._ray.cancel(handle, force=True)


class DaskTasks(ClusterTasks):
    """Tasks on the Dask cluster that this process is connected to."""

    def __init__(self) -> None:
        super().__init__()
        self._client = importlib.import_module("distributed").get_client()

    def _cores(self) -> int:
        return int(sum(self._client.ncores().values()))

    def _begin(self, func: Callable[[], Any]) -> tuple[Any, Any]:
        future = self._client.submit(_called, func, pure=False, retries=0)
        return future, future

    def _cancel(self, handle: Any) -> None:
        handle.cancel()


def _called(function: Callable[[], Any]) -> Any:
    return function()
