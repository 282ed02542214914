"""Limits: what a request may be, and what every answer says to the browser.

Guarantee:
    No request is taken whose head is longer than `LARGEST_HEAD` bytes, and no body is read beyond `LARGEST_BODY` bytes
    or `SECONDS_TO_SEND` seconds. No page may load, embed, or send a form
    to, anything but this server; none is kept by a cache or shown inside another page.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from inosgd.serve.settings import Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LARGEST_HEAD, LARGEST_BODY = 16_384, 8192
SECONDS_TO_SEND = 10.0
MOST_FAILURES, PERIOD = 10, 300.0
"""After so many wrong secrets from one address within so many seconds, it has to wait."""

MOST_CHANGES = 20
"""After so many changes within that time an owner has to wait, but for pausing and withdrawing."""

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with "no-referrer", browsers do not say where a form comes from either
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
)
TLS_ONLY = (b"strict-transport-security", b"max-age=31536000")


class Refused(Exception):  # noqa: N818
    """A request that is not read to its end; the status code of the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Guard:
    """Around the application: refuses foreign hosts, adds the headers, and reads bodies only within the limits."""

    def __init__(self, application: Application, settings: Settings) -> None:
        self._application, self._hosts = application, settings.hosts
        self._headers = [*HEADERS, *([TLS_ONLY] if settings.secure else [])]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._application(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        if sum(len(key) + len(value) for key, value in scope["headers"]) + len(scope["query_string"]) > LARGEST_HEAD:
            await _answer(with_headers, 431)
            return
        if _header(scope, b"host") not in self._hosts:
            await _answer(with_headers, 421)
            return
        try:
            body = await asyncio.wait_for(_read(scope, receive), SECONDS_TO_SEND)
        except TimeoutError:
            await _answer(with_headers, 408)
            return
        except Refused as refused:
            await _answer(with_headers, refused.status)
            return

        async def whole() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._application(scope, whole, with_headers)


async def _read(scope: MutableMapping[str, Any], receive: Receive) -> bytes:
    length = _header(scope, b"content-length") or "0"
    if not length.isdecimal() or len(length) > 9 or int(length) > LARGEST_BODY:
        raise Refused(413)
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400)
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LARGEST_BODY:
            raise Refused(413)
    return body


async def _answer(send: Send, status: int) -> None:
    words = {400: "Bad request", 408: "Too slow", 413: "Too large", 421: "Not this host", 431: "Too large"}[status]
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode()})


def _header(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1").lower() if len(found) == 1 else None


class Attempts:
    """How often something was done lately, by address or by owner; in memory, of those that did it last."""

    def __init__(self, most: int = MOST_FAILURES, period: float = PERIOD, addresses: int = 10_000) -> None:
        self._most, self._period, self._addresses = most, period, addresses
        self._done: OrderedDict[str, list[float]] = OrderedDict()
        self._lock = threading.Lock()

    def allowed(self, address: str) -> bool:
        """Whether the address may do it now."""
        with self._lock:
            return len(self._recent(address)) < self._most

    def done(self, address: str) -> None:
        """The address did it."""
        with self._lock:
            self._done[address] = [*self._recent(address), time.monotonic()]
            self._done.move_to_end(address)
            while len(self._done) > self._addresses:
                self._done.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = time.monotonic() - self._period
        return [when for when in self._done.get(address, []) if when > since]
