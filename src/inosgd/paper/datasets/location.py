"""Where the data are: a folder that the user names."""

from __future__ import annotations

import os
from pathlib import Path

from inosgd.data.files import MissingDataError

VARIABLE = "INOSGD_DATA"


def data_folder(given: Path | None) -> Path:
    """The folder ``given``, or the one that the environment variable INOSGD_DATA names.

    Raises:
        MissingDataError: If neither is there, saying what to do.
    """
    named = os.environ.get(VARIABLE, "")
    if given is None and not named:
        raise MissingDataError(f"no data folder: give --data DIR, or set {VARIABLE} to a folder for data sets")
    folder = given if given is not None else Path(named)
    if not folder.is_dir():
        source = f"data={str(folder)!r}" if given is not None else f"{VARIABLE}={named!r}"
        raise MissingDataError(f"{source}: there is no such folder; create it, or name another")
    return folder
