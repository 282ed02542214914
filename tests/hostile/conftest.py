"""The program, run as its users run it."""

from tests.cli.conftest import inosgd

__all__ = ["inosgd"]
