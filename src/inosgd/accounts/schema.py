"""The schema of a book: one for SQLite and PostgreSQL, as steps that are applied in order.

    book          one row: an identifier and the number of steps of this schema that were applied
    entries       the chain (`inosgd.accounts.chain`): everything that ever happened; nothing else is needed to verify
    arrays        large columns of entries, which the entries know by their roots; never changed
    collections   of units: where each stands now, a number per class of owners in every column
    owners        the row of each owner in the columns of its collection
    reservations  where each stands now
    standings     of owners who have changed their budget: open, paused or withdrawn, what they asked for, which entry
    requests      raised budgets that wait for the model owner, or were answered
    links         who may open the owners' page (`inosgd.serve`): digests of secrets, never secrets
    sessions      who has logged in there: digests of tokens
    audit         log-ins, refusals, links and changes, in their order

``collections``, ``reservations`` and ``standings`` follow from ``entries`` and ``arrays``
(`inosgd.accounts.verification`). Owners with the same budget and history are one class. A reservation looks at every
class, so classes are columns, not rows.

The audit log is a table and not part of the chain: the header of every entry is in every owner's receipt, so that each
owner would see when others log in, and who tries wrong secrets could make all receipts longer. Changes of budgets are
entries of the chain, and the log names their numbers.
"""

from __future__ import annotations

import os
import uuid

from inosgd import _validate
from inosgd.accounts.database import Database

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE book (id TEXT NOT NULL, salt {bytes} NOT NULL, version INTEGER NOT NULL)",
        "CREATE TABLE entries (number {big} PRIMARY KEY, time TEXT NOT NULL, collection INTEGER, kind TEXT NOT NULL, "
        "body TEXT NOT NULL, previous TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE)",
        "CREATE INDEX entries_of ON entries (collection, number)",
        "CREATE TABLE arrays (entry {big} NOT NULL REFERENCES entries (number), name TEXT NOT NULL, "
        "type TEXT NOT NULL, shape TEXT NOT NULL, content {bytes} NOT NULL, PRIMARY KEY (entry, name))",
        "CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, owners INTEGER NOT NULL, "
        "roster TEXT NOT NULL, members {big} NOT NULL, classes INTEGER NOT NULL, epsilons {bytes} NOT NULL, "
        "deltas {bytes} NOT NULL, orders {bytes} NOT NULL, parents {bytes} NOT NULL, spent {bytes} NOT NULL, "
        "held {bytes} NOT NULL)",
        "CREATE TABLE owners (collection INTEGER NOT NULL REFERENCES collections (id), name TEXT NOT NULL, "
        "place INTEGER NOT NULL, PRIMARY KEY (collection, name))",
        "CREATE TABLE reservations (id TEXT PRIMARY KEY, collection INTEGER NOT NULL REFERENCES collections (id), "
        "entry {big} NOT NULL REFERENCES entries (number), state TEXT NOT NULL, purpose TEXT NOT NULL, "
        "run TEXT, plan TEXT, begun {big} NOT NULL, releases TEXT NOT NULL, committed {big} NOT NULL)",
        "CREATE INDEX reservations_of ON reservations (collection, state)",
    ),
    (
        "ALTER TABLE collections ADD COLUMN changed {big} NOT NULL DEFAULT 0",
        "CREATE TABLE standings (collection INTEGER NOT NULL REFERENCES collections (id), owner TEXT NOT NULL, "
        "state TEXT NOT NULL, epsilon DOUBLE PRECISION NOT NULL, delta DOUBLE PRECISION NOT NULL, "
        "entry {big} NOT NULL, PRIMARY KEY (collection, owner))",
        "CREATE TABLE requests (number {big} PRIMARY KEY, collection INTEGER NOT NULL REFERENCES collections (id), "
        "owner TEXT NOT NULL, epsilon DOUBLE PRECISION NOT NULL, delta DOUBLE PRECISION NOT NULL, time TEXT NOT NULL, "
        "state TEXT NOT NULL)",
        "CREATE INDEX requests_of ON requests (collection, owner)",
        "CREATE TABLE links (id TEXT PRIMARY KEY, collection INTEGER REFERENCES collections (id), owner TEXT, "
        "digest {bytes} NOT NULL, made TEXT NOT NULL, used TEXT, revoked TEXT)",
        "CREATE TABLE sessions (digest {bytes} PRIMARY KEY, link TEXT NOT NULL REFERENCES links (id), "
        "ends TEXT NOT NULL)",
        "CREATE TABLE audit (number {big} PRIMARY KEY, time TEXT NOT NULL, link TEXT, action TEXT NOT NULL, "
        "entry {big})",
    ),
)
"""Steps that were published are never changed; the next change of the schema is one more step."""


def migrate(database: Database) -> None:
    """Bring a book to this schema, also a new one, which has no tables."""
    version = _version(database)
    if version == len(MIGRATIONS):
        return
    if version > len(MIGRATIONS):
        raise _validate.other_format("account book", version, len(MIGRATIONS), "use that version")
    with database.writing():
        version = _version(database)  # another process may have been faster
        for step in MIGRATIONS[version:]:
            for statement in step:
                database.rows(statement.format(**database.types))
        if version == 0:
            salt = os.urandom(32)
            database.rows("INSERT INTO book VALUES (?, ?, ?)", [uuid.uuid4().hex, salt, len(MIGRATIONS)])
        database.rows("UPDATE book SET version = ?", [len(MIGRATIONS)])


def _version(database: Database) -> int:
    return int(database.rows("SELECT version FROM book")[0][0]) if database.has("book") else 0
