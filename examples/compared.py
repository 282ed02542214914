"""Methods and plans side by side, in Python: what `inosgd compare` does, with its verdict and one of its charts.

python examples/compared.py                   # half a minute
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from inosgd.compare.comparison import compare, open_store
from inosgd.compare.entrant import entrants
from inosgd.method import method_named
from inosgd.parallel.workers import Workers
from inosgd.report import Cell, cell, read_runs, write_figures
from inosgd.study.built_in import STUDIES


def main(steps: int = 60, seeds: int = 3, folder: Path | None = None) -> Cell:
    """Compare; what a notebook shows about it."""
    place = folder or Path(tempfile.mkdtemp())
    study = STUDIES["digits"].changed({"steps": steps, "accountant": "rdp"})
    entered = entrants([method_named(name) for name in ("dp-sgd", "idp-sgd", "auto")], ["sample"])
    for result in compare(study, entered, range(seeds), open_store(study, place), workers=Workers(jobs=1)):
        print(f"{result.entrant['label']}, seed {result.seed}: {result.final.scored_by} {result.final.overall:.3f}")
    material = read_runs([place])
    write_figures(material, place / "figures", ("svg",), ("owners",))
    shown = cell(material)
    print(shown)
    return shown


if __name__ == "__main__":
    main()
