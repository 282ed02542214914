"""Report: what came of private training with owners, as one page that opens anywhere, and as figures for papers.

    runs -> `Material` (plain values) -> tables -> chart specifications -> a page, or PNG, SVG and PDF

The charts are Altair specifications and the same everywhere; what a page does beyond a figure is to switch owners and
methods off and to follow light, dark and narrow screens.
"""

from inosgd.report.cells import Cell, cell
from inosgd.report.material import Material, MethodRow, OwnerFacts
from inosgd.report.reading import read_runs
from inosgd.report.writing import write_figures, write_report

__all__ = ["Cell", "Material", "MethodRow", "OwnerFacts", "cell", "read_runs", "write_figures", "write_report"]
