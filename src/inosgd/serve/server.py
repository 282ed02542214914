"""The server: uvicorn, with a limit on how long a request may take to arrive, and logs without addresses of pages."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inosgd._extras import needs
from inosgd.accounts.book import Accounts
from inosgd.serve.app import application
from inosgd.serve.limits import LARGEST_HEAD, SECONDS_TO_SEND
from inosgd.serve.settings import Settings

MOST_CONNECTIONS = 500


def serve(settings: Settings, started: Callable[[Settings], None] | None = None) -> None:
    """Show a book until the process is interrupted.

    Args:
        settings: Which book, and where.
        started: Called with the settings, the port that was chosen included, before the first request is taken.

    Raises:
        InvalidArgumentError: If there is no book.
    """
    with needs("serve"):
        import uvicorn

    Accounts.open(settings.book).close()  # what is wrong with it is said here, not to its first reader
    listening = _listening(settings)
    settings = replace(settings, port=listening.getsockname()[1])
    config = uvicorn.Config(
        application(settings),
        http=_protocol(),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    if started is not None:
        started(settings)
    uvicorn.Server(config).run(sockets=[listening])


def _listening(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen()  # from here on connections wait for the server, so that its address may be told
    except BaseException:
        listening.close()
        raise
    return listening


def _protocol() -> Any:
    """HTTP/1.1 that closes a connection if the head of a request does not arrive in time; uvicorn waits for ever."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Timed(H11Protocol):
        """A connection whose requests arrive in time."""

        _watch: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waiting = self.conn.their_state is h11.IDLE
            if waiting and self._watch is None:
                self._watch_head()
            elif not waiting and self._watch is not None:
                self._watch.cancel()
                self._watch = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._watch is not None:
                self._watch.cancel()
            super().connection_lost(exc)

        def _watch_head(self) -> None:
            self._watch = self.loop.call_later(SECONDS_TO_SEND, self._too_slow)

        def _too_slow(self) -> None:
            self._watch = None
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self.transport.close()

    return Timed
