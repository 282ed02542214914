"""The program: its commands, and how errors reach the user."""

from __future__ import annotations

import errno
import signal
import sys

import typer
from rich.markup import escape

from inosgd.cli.commands import LoadedWhenRun, register
from inosgd.cli.console import messages
from inosgd.cli.flags import with_flags
from inosgd.errors import InosgdError, PeerLostError

app = typer.Typer(
    name="inosgd",
    cls=LoadedWhenRun,
    help="Train PyTorch models under individual privacy budgets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
register(app)


def _show_version(requested: bool) -> None:
    if requested:
        from inosgd._version import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _program(
    show_version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Train PyTorch models under individual privacy budgets."""


REFUSALS = {
    errno.ENOENT: "there is no such file or folder; correct the path, or create the folder first",
    errno.EACCES: "it may not be read or written; choose another place, or change its permissions",
    errno.EPERM: "it may not be read or written; choose another place, or change its permissions",
    errno.EROFS: "this disk cannot be written; choose another place",
    errno.EEXIST: "it is there already; choose another place",
    errno.ENOTDIR: "a file is where a folder should be; correct the path",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENOSPC: "no space is left on this disk; free some",
}
"""What the system refused, with its fix."""


def _said(error: Exception) -> str:
    """The text of an error; what the operating system says of a file, with the file first and a fix."""
    if not isinstance(error, OSError) or error.filename is None or error.errno not in REFUSALS:
        return str(error)
    return f"{str(error.filename)!r}: {REFUSALS[error.errno]}"


def run() -> None:
    """Run the program: exit code 0 for success, 2 for a request that cannot be met, 130 or 143 when interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that unfinished folders are removed
    try:
        app()
    except PeerLostError as error:  # the first process, which speaks for all, may be the one that is lost
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except (InosgdError, OSError) as error:
        text = with_flags(_said(error), sys.argv[1:])
        messages().print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        messages().print("interrupted; nothing was kept")
        sys.exit(130)
