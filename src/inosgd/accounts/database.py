"""Databases: SQLite in one file, or PostgreSQL for several machines, behind the few calls that a book makes.

Statements are written once, with ``?`` for values. A write takes the lock of the whole book for as long as it lasts,
because every entry follows the last one.

Guarantee:
    When `Database.writing` ends, everything inside is on disk: SQLite has a write-ahead log and ``synchronous = FULL``,
    PostgreSQL ``synchronous_commit = on``. When it raises, or the process dies, nothing of it has happened. A file that
    is not where it was opened any more is neither read nor written: others would see nothing of it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from inosgd._extras import needs
from inosgd.errors import AccountError, InosgdError, InvalidArgumentError

if TYPE_CHECKING:
    import psycopg

SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")
PATIENCE = 120.0
"""Seconds to wait for another process to finish its write."""


class Database(Protocol):
    """A connection to a book."""

    types: dict[str, str]

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that a statement gives; none if it gives none."""

    def fill(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to a table, each with a value for every column."""

    def writing(self) -> Any:
        """A context: what is written inside happens whole or not at all, and no other process writes meanwhile."""

    def reading(self) -> Any:
        """A context: all statements inside see one state of the book, whatever others write meanwhile."""

    def has(self, table: str) -> bool:
        """Whether a table is there."""

    def close(self) -> None:
        """End the connection."""


class SqliteDatabase:
    """A book in one file."""

    types: dict[str, str] = {"bytes": "BLOB", "big": "INTEGER"}  # noqa: RUF012

    def __init__(self, path: Path, *, create: bool) -> None:
        if create and path.exists():
            raise InvalidArgumentError(f"url={SQLITE}{path}: the file exists; open it, or choose another name")
        if not create and not path.is_file():
            raise InvalidArgumentError(f"url={SQLITE}{path}: there is no book; make one with `inosgd account create`")
        if create:
            path.touch(mode=0o600)
        self._path, self._connection = path.absolute(), sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        self._file = self._path.stat()
        try:
            if create:
                self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise InvalidArgumentError(f"url={SQLITE}{path}: it cannot be read as a book ({error})") from None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that a statement gives."""
        self._check_in_place()
        return self._connection.execute(statement, values).fetchall()

    def fill(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to a table."""
        marks = ", ".join("?" * len(rows[0]))
        self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the file."""
        self._check_in_place()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Begin a transaction, whose first statement takes the state; inside another one that is done already."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")  # nothing was written

    def has(self, table: str) -> bool:
        """Whether a table is there."""
        try:
            return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [table]))
        except sqlite3.DatabaseError as error:
            raise InvalidArgumentError(f"the file cannot be read as a book: {error}; restore it from a copy") from None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _check_in_place(self) -> None:
        """Raise if another file, or none, has the name under which this one was opened."""
        try:
            same = os.path.samestat(self._path.stat(), self._file)
        except FileNotFoundError:
            same = False
        if not same:
            raise AccountError(
                f"url={SQLITE}{self._path}: the book was moved, replaced or deleted while it was open; put the newest "
                "one there and start again, with `inosgd resume` for a training"
            )


class PostgresDatabase:
    """A book on a server."""

    types: dict[str, str] = {"bytes": "BYTEA", "big": "BIGINT"}  # noqa: RUF012

    def __init__(self, url: str) -> None:
        with needs("accounts"):
            import psycopg
        try:
            self._connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError as error:
            # The message of the driver names host and database, never the password.
            raise InosgdError(f"account: the server cannot be reached; {str(error).strip()}") from None
        self._connection.execute("SET synchronous_commit = on")

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that a statement gives."""
        import psycopg

        try:
            cursor = self._connection.execute(_percent(statement), values)
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.OperationalError as error:
            raise InosgdError(f"account: the connection was lost ({str(error).strip()}); resume the run") from None

    def fill(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to a table, by COPY: many times faster than one statement each."""
        statement: Any = f"COPY {table} FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the book's one row; every statement after it sees what others have written before."""
        with self._connection.transaction():
            if self.has("book"):
                self._connection.execute("SELECT id FROM book FOR UPDATE")
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Begin a transaction, whose first statement takes the state; inside another one that is done already."""
        from psycopg.pq import TransactionStatus

        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            yield
            return
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def has(self, table: str) -> bool:
        """Whether a table is there."""
        return self.rows("SELECT to_regclass(?)::text", [table])[0][0] is not None

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def connect(url: str, *, folder: Path | None = None, create: bool = False) -> Database:
    """The database at ``url``: sqlite:///PATH (relative to ``folder``), or postgresql://HOST/DATABASE."""
    if url.startswith(SQLITE) and len(url) > len(SQLITE):
        return SqliteDatabase((folder or Path()) / url.removeprefix(SQLITE), create=create)
    if url.startswith(POSTGRESQL):
        return PostgresDatabase(url)
    raise InvalidArgumentError(f"account={url!r}: give sqlite:///accounts.db or postgresql://host/database")


def _percent(statement: str) -> Any:
    return statement.replace("?", "%s")
