"""Data: readers of the files that users bring. Strict, safe against hostile files, and lazy where files are large."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inosgd.data.mapped import MappedExamples
    from inosgd.data.parquet import ParquetExamples
else:
    from inosgd._lazy import loaded_when_used

    __getattr__, __dir__ = loaded_when_used(
        __name__,
        {
            "inosgd.data.mapped": ("MappedExamples",),
            "inosgd.data.parquet": ("ParquetExamples",),
        },
    )

__all__ = [
    "MappedExamples",
    "ParquetExamples",
]
