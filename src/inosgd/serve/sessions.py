"""Sessions: who has logged in. A session is a random token in a cookie, of which the book keeps the SHA-256.

Forms are tied to their session by HMAC-SHA-256 under its token, which no other site and no other session has, over
everything that the form does.
"""

from __future__ import annotations

import datetime
import hmac
import secrets

from inosgd.accounts.book import Accounts
from inosgd.accounts.writing import LARGEST_LAG
from inosgd.serve.audit import note
from inosgd.serve.links import Visitor, digest, note_of

LIFETIME = datetime.timedelta(hours=2)
"""A session ends so long after its log-in."""

MOST = 20
"""Sessions of one link at a time; the ones that end first make room."""


def open_session(book: Accounts, visitor: Visitor) -> str:
    """Log a visitor in: the token of the session, which is nowhere but in the cookie."""
    token, now = secrets.token_urlsafe(32), book.now()
    database, ends = book.database, (now + LIFETIME).isoformat(timespec="microseconds")
    with database.writing():
        database.rows("DELETE FROM sessions WHERE ends <= ?", [now.isoformat(timespec="microseconds")])
        newest = "SELECT digest FROM sessions WHERE link = ? ORDER BY ends DESC"
        for (old,) in database.rows(newest, [visitor.link])[MOST - 1 :]:
            database.rows("DELETE FROM sessions WHERE digest = ?", [old])
        database.rows("INSERT INTO sessions VALUES (?, ?, ?)", [digest(token), visitor.link, ends])
        used = now.isoformat(timespec="seconds")
        database.rows("UPDATE links SET used = ? WHERE id = ?", [used, visitor.link])
        note_of(book, visitor, "log-in")
    return token


def visitor_of(book: Accounts, token: str | None) -> Visitor | None:
    """Who has logged in with this token; None if the session has ended or its link was revoked.

    A session that would end later than one that begins now is over too: the clock was set back.
    """
    if not token:
        return None
    statement = (
        "SELECT links.id, links.collection, links.owner FROM sessions JOIN links ON links.id = sessions.link "
        "WHERE sessions.digest = ? AND sessions.ends > ? AND sessions.ends < ? AND links.revoked IS NULL"
    )
    now = book.now()
    latest = now + LIFETIME + datetime.timedelta(seconds=LARGEST_LAG)
    found = book.database.rows(
        statement, [digest(token), *(time.isoformat(timespec="microseconds") for time in (now, latest))]
    )
    return Visitor(*found[0]) if found else None


def close_session(book: Accounts, visitor: Visitor, token: str) -> None:
    """Log out."""
    with book.database.writing():
        book.database.rows("DELETE FROM sessions WHERE digest = ?", [digest(token)])
        note(book, visitor.link, "log-out")


def form_token(session: str, *what: str) -> str:
    """What a form has to carry that does ``what``."""
    return hmac.new(session.encode(), "\0".join(("form", *what)).encode(), "sha256").hexdigest()


def is_own_form(session: str, token: str, *what: str) -> bool:
    """Whether a form was made for this session, and for doing just that."""
    return hmac.compare_digest(form_token(session, *what).encode(), token.encode())
