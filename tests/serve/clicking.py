"""Many owners who click at once: each logs in, looks, changes its budget again and again, and fetches its receipt."""

from __future__ import annotations

import http.client
import re
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from tests.serve.visiting import form_of

ACTIONS = (("lower", "0.9"), ("pause", ""), ("resume", ""), ("lower", "0.8"), ("raise", "5"))
"""What each owner does, one after the other; all but the last are entries of the chain."""


@dataclass
class Clicked:
    """What came of it.

    Attributes:
        seconds: How long each request took.
        failures: What went wrong.
        confirmed: By owner, how many changes the server has confirmed with an entry.
        took: Seconds in all.
    """

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    confirmed: dict[str, int] = field(default_factory=dict)
    took: float = 0.0


def click(origin: str, tokens: dict[str, str], actions=ACTIONS) -> Clicked:
    """Let all owners begin at the same moment."""
    clicked, barrier = Clicked(), threading.Barrier(len(tokens))
    given = (actions, barrier, clicked)
    threads = [threading.Thread(target=_owner, args=(origin, *each, *given)) for each in tokens.items()]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clicked.took = time.monotonic() - began
    return clicked


def _owner(origin, owner, token, actions, barrier, clicked) -> None:
    try:
        barrier.wait()
        session = Session(origin, clicked)
        session.send("POST", "/enter", {"token": token}, 303)
        assert owner in session.send("GET", "/")
        clicked.confirmed[owner] = 0
        for action, epsilon in actions:
            page = session.send("GET", "/change?" + urlencode({"action": action, "epsilon": epsilon}))
            session.send("POST", "/change", form_of(page, "/change"), 303)
            clicked.confirmed[owner] += "entry=" in session.location
            session.send("GET", session.location)
        session.send("GET", "/receipt.json")
    except Exception as error:
        clicked.failures.append(f"{owner}: {error!r}"[:300])


def _words(page: str) -> str:
    """What a page says after its head, without markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("<main")[2] or page).split())


class Session:
    """A visitor that keeps its cookie, over real connections."""

    def __init__(self, origin: str, clicked: Clicked) -> None:
        self._address, self._origin, self._clicked = urlsplit(origin).netloc, origin, clicked
        self._cookie, self.location = "", ""

    def send(self, method: str, path: str, form: dict[str, str] | None = None, status: int = 200) -> str:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        headers = {"Origin": self._origin, "Cookie": self._cookie, "Connection": "close"}
        body = None
        if form is not None:
            headers["Content-Type"], body = "application/x-www-form-urlencoded", urlencode(form)
        began = time.monotonic()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        self._clicked.seconds.append(time.monotonic() - began)
        assert answer.status == status, f"{method} {path.partition('?')[0]}: {answer.status} {_words(text)}"
        self._cookie = (answer.getheader("set-cookie") or self._cookie).partition(";")[0]
        self.location = answer.getheader("location") or ""
        return text
