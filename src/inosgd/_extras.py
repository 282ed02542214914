"""Extras: packages that are installed only where they are asked for, and what is said where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from inosgd.errors import MissingExtraError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports of packages that the extra installs.

    Raises:
        MissingExtraError: If one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(extra, str(error.name).partition(".")[0]) from None


def require(extra: str, *packages: str) -> None:
    """Raise `MissingExtraError` unless all ``packages`` of the extra are installed; none is imported."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(extra, package)
