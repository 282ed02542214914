"""The command line: ``inosgd COMMAND``."""

from inosgd.cli.main import app, main

__all__ = ["app", "main"]
