"""A real server in a thread of this process, for as long as it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from inosgd.serve import server
from inosgd.serve.settings import Settings

PATIENCE = 60.0


@contextmanager
def served(url: str) -> Iterator[Settings]:
    """The settings of a server that shows the book at ``url``, its port among them."""
    kept: list[uvicorn.Server] = []
    chosen: list[Settings] = []
    run = uvicorn.Server.run

    def keep(self, *arguments, **named):
        kept.append(self)
        return run(self, *arguments, **named)

    uvicorn.Server.run = keep
    thread = threading.Thread(target=server.serve, args=(Settings(url, port=0), chosen.append))
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not (kept and kept[0].started):
            assert thread.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        yield chosen[0]
    finally:
        uvicorn.Server.run = run
        for each in kept:
            each.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
