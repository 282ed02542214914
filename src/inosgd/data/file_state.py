"""The state of a file: whether it is still the one that was opened.

Data that stay on disk are read again at every step. A plan was made for their number and owners, and a ledger charges
for them; another file under the same name would be trained on at the expense of budgets that were given for this one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from inosgd.errors import InvalidArgumentError


@dataclass(frozen=True)
class FileState:
    """Which file a path named, its size and when it was last modified.

    Not its content: a write after which the time of the file is set back is not noticed. Runs of a study compare
    checksums when they begin and resume.
    """

    path: Path
    device: int
    number: int
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """The state now."""
        if not path.is_file():
            raise InvalidArgumentError(f"{path}: there is no such file; correct the path")
        found = os.stat(path)
        return cls(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def check(self) -> None:
        """Raise unless the path still names this file, and it has not been written to."""
        try:
            unchanged = self == FileState.of(self.path)
        except (InvalidArgumentError, OSError):
            unchanged = False
        if not unchanged:
            raise InvalidArgumentError(
                f"{self.path}: it was changed, replaced or removed while it was in use; put it back as it was, or open "
                "the new one, plan again and train anew"
            )
