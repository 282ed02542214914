"""Tabled: values that look like tables, in a notebook's cell and where they are printed.

Only public numbers are shown, rounded as everywhere (`inosgd.shown`). Of many owners the first ones are shown, and by
`Tabled.show` as many as are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import islice

MOST_ROWS = 20


@dataclass(frozen=True)
class TextTable:
    """A title, heads of columns, and rows of text; the first column is a name, the others are numbers.

    >>> print(TextTable("2 owners", ("owner", "epsilon"), (("north", "0.5"), ("south", "5")), 2))
    2 owners
    owner  epsilon
    north      0.5
    south        5
    """

    title: str
    heads: Sequence[str]
    rows: Iterable[Sequence[str]]
    count: int
    most: int = MOST_ROWS

    def __str__(self) -> str:
        rows = [tuple(self.heads), *islice(self.rows, self.most)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.heads))]
        lines = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join([self.title, *lines, *self._more()])

    def html(self) -> str:
        """The same for a notebook; names are escaped."""
        heads = "".join(f"<th>{escape(head)}</th>" for head in self.heads)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in islice(self.rows, self.most)
        )
        more = "".join(f"<p>{line}</p>" for line in self._more())
        return f"<p><b>{escape(self.title)}</b></p><table><tr>{heads}</tr>{rows}</table>{more}"

    def _more(self) -> list[str]:
        return [f"... and {self.count - self.most:,} more"] if self.count > self.most else []


def in_notebook() -> bool:
    """Whether this is a cell of a notebook, which shows HTML; IPython is there then, and is not needed otherwise."""
    shell = sys.modules.get("IPython")
    current = None if shell is None else shell.get_ipython()
    return current is not None and hasattr(current, "kernel")


class Tabled:
    """A value that is shown as its `tabled`."""

    def tabled(self) -> TextTable:
        """What is shown."""
        raise NotImplementedError

    def show(self, rows: int = MOST_ROWS) -> None:
        """Show the table where this is called: as a table in a notebook's cell, else as text.

        Args:
            rows: At most so many owners.
        """
        table = replace(self.tabled(), most=rows)
        if in_notebook():
            from IPython.display import HTML, display

            display(HTML(table.html()))
        else:
            print(table)

    def __repr__(self) -> str:
        return str(self.tabled())

    def _repr_html_(self) -> str:
        return self.tabled().html()
