"""``inosgd serve``: the owners' page of an account book."""

from __future__ import annotations

from typing import Annotated

import typer

from inosgd._extras import require
from inosgd.cli.console import results
from inosgd.serve.settings import PORT, Settings

PROXY = (
    "The https:// address of a proxy that ends TLS before this server; without one only this machine reaches the page."
)


def serve_command(
    book: Annotated[str, typer.Argument(metavar="BOOK", help="sqlite:///accounts.db or postgresql://host/database.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 for any port that is free.")] = PORT,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    behind_proxy: Annotated[str | None, typer.Option(metavar="URL", help=PROXY)] = None,
) -> None:
    """Show an account book in the browser: owners see and change their budgets, the model owner sees all of it.

    Personal links, which `inosgd account link` makes, open the page. It listens on this machine alone. For owners on
    other machines put a proxy with TLS before it, and name the address that they use with --behind-proxy.
    """
    settings = Settings(book, host, port, behind_proxy)
    require("serve", "jinja2", "starlette", "uvicorn")
    from inosgd.serve.server import serve

    serve(settings, started=_started)


def _started(settings: Settings) -> None:
    results().print(
        f"Open {settings.origin}/enter with a link of `inosgd account link`. Ctrl-C ends it.", soft_wrap=True
    )
