"""A PostgreSQL server in a temporary folder, for as long as it is needed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

REQUIRED = "INOSGD_REQUIRE_POSTGRES"
"""An environment variable: where it is set, tests that find no server fail instead of being skipped."""


def missing() -> str | None:
    """Why there can be no server here; None if there can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'inosgd[accounts]'"
    if program("initdb") is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.getuid() == 0 and not any(user.pw_name == "postgres" for user in pwd.getpwall()):
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None


def program(name: str) -> str | None:
    """Where a program of the server is; Debian keeps them out of the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))


class Server:
    """A running server, reached through a socket in its folder."""

    def __init__(self, folder: Path, user: str) -> None:
        self.folder, self.user = folder, user

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={self.folder}&user={self.user}"

    def new_database(self) -> str:
        """The URL of an empty schema: to one book what a database of its own is, without its hundreds of files."""
        import psycopg

        name = f"book_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"


@contextmanager
def server() -> Iterator[Server]:
    """A server with an empty cluster; its folder is gone at the end."""
    root = os.getuid() == 0
    account = pwd.getpwnam("postgres") if root else pwd.getpwuid(os.getuid())
    folder = Path(tempfile.mkdtemp(prefix="inosgd-postgres-"))
    as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if root else {}
    if root:
        os.chown(folder, account.pw_uid, account.pw_gid)
    data = folder / "data"

    def run(name: str, *arguments: str) -> None:
        command = [program(name) or name, "-D", str(data), *arguments]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=120, **as_user
        )
        assert done.returncode == 0, done.stderr

    try:
        run("initdb", "--no-sync", "--auth=trust", f"--username={account.pw_name}", "--encoding=UTF8", "--locale=C")
        options = f"-c listen_addresses='' -k {folder} -c max_connections=50 -c fsync=off"
        run("pg_ctl", "start", "--wait", "--log", str(folder / "log"), "-o", options)
        try:
            yield Server(folder, account.pw_name)
        finally:
            run("pg_ctl", "stop", "--wait", "--mode=immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
