"""The command line: ``inosgd COMMAND``."""

import sys

from inosgd._extras import require
from inosgd.errors import MissingExtraError


def main() -> None:
    """Run the program; without the packages of the extra ``cli``, say how to install them."""
    try:
        require("cli", "typer", "rich")
    except MissingExtraError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from inosgd.cli.program import run

    run()
