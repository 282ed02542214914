"""Links: who may open the page. A link holds a token, which is an identifier and a secret of 256 bits.

Guarantee:
    The book holds the SHA-256 of a secret and never the secret. Comparing takes the same time whether the identifier
    is unknown, revoked or right. A revoked link opens nothing, and its sessions end with it; a change that is on its
    way when its link is revoked is made before that or not at all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from inosgd import _validate
from inosgd.accounts.book import Accounts
from inosgd.errors import AccountError, InvalidArgumentError
from inosgd.owners import EXAMPLE
from inosgd.serve.audit import note
from inosgd.units import parts_of

_NOBODY = bytes(32)


@dataclass(frozen=True)
class Visitor:
    """Who is at the page: an owner of a collection, or the model owner, who has neither."""

    link: str
    collection: int | None = None
    owner: str | None = None

    @property
    def is_model_owner(self) -> bool:
        """Whether it runs the trainings."""
        return self.owner is None


@dataclass(frozen=True)
class Link:
    """A link as it is listed; its secret is not known."""

    visitor: Visitor
    made: str
    used: str | None
    revoked: str | None


def digest(secret: str) -> bytes:
    """What the book keeps of a secret; it has 256 random bits, so that no slow hash is needed."""
    return hashlib.sha256(secret.encode()).digest()


def make_link(book: Accounts, collection: str | None = None, owner: str | None = None) -> str:
    """A new link for an owner, or without one for the model owner: its token, which is shown once.

    Raises:
        UnknownOwnerError: If the owner has no account.
    """
    number = None
    if owner is not None:
        found = book.collection(collection)
        book.place(found, owner)
        number = found.number
        unit = book.entries(number, "opened")[0].fields["unit"]
        if unit != EXAMPLE and parts_of(owner, book.names(found)):
            raise _validate.fail("owner", owner, f"it stands for each {unit} of several owners; make links for those")
    identifier, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    made = book.now().isoformat(timespec="seconds")
    with book.database.writing():
        statement = "INSERT INTO links (id, collection, owner, digest, made) VALUES (?, ?, ?, ?, ?)"
        book.database.rows(statement, [identifier, number, owner, digest(secret), made])
        note(book, identifier, "link made")
    return f"{identifier}.{secret}"


def visitor_with(book: Accounts, token: str) -> Visitor | None:
    """Whose link has this token; None if no link that stands has it."""
    identifier, _, secret = token.strip().partition(".")
    statement = "SELECT id, collection, owner, digest FROM links WHERE id = ? AND revoked IS NULL"
    found = book.database.rows(statement, [identifier if identifier.isalnum() else ""])  # no zero byte for PostgreSQL
    kept = bytes(found[0][3]) if found else _NOBODY
    same = hmac.compare_digest(digest(secret), kept)
    return Visitor(*found[0][:3]) if same and found else None


def note_of(book: Accounts, visitor: Visitor, action: str, entry: int | None = None) -> None:
    """Note what a visitor does, in the transaction that does it; refused if its link was revoked meanwhile."""
    if book.database.rows("SELECT id FROM links WHERE id = ? AND revoked IS NOT NULL", [visitor.link]):
        raise AccountError("your link was revoked. Nothing was changed now")
    note(book, visitor.link, action, entry)


def links(book: Accounts) -> list[Link]:
    """All links, the oldest first."""
    statement = "SELECT id, collection, owner, made, used, revoked FROM links ORDER BY made, id"
    return [Link(Visitor(*row[:3]), *row[3:]) for row in book.database.rows(statement)]


def revoke(book: Accounts, identifier: str) -> None:
    """From now on the link opens nothing, and who came by it is logged out."""
    now = book.now().isoformat(timespec="seconds")
    with book.database.writing():
        if not book.database.rows("SELECT id FROM links WHERE id = ?", [identifier]):
            raise InvalidArgumentError(f"link={identifier!r}: there is no such link; `inosgd account links` lists them")
        book.database.rows("UPDATE links SET revoked = COALESCE(revoked, ?) WHERE id = ?", [now, identifier])
        book.database.rows("DELETE FROM sessions WHERE link = ?", [identifier])
        note(book, identifier, "link revoked")
