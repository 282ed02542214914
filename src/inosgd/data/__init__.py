"""Data: readers of the files that users bring. Strict, safe against hostile files, and lazy where files are large."""

from inosgd.data.mapped import MappedExamples
from inosgd.data.parquet import ParquetExamples

__all__ = ["MappedExamples", "ParquetExamples"]
