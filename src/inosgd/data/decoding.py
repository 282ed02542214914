"""Decoding Parquet in memory that the file's size bounds.

A column that repeats one value is stored as that value and a number: a small file can decode to any size, and a long
text that is stored once can stand in every row. What the file's table of contents claims is therefore added up before
anything is decoded, and texts are decoded as references to what is stored, counted, and only then written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inosgd._extras import needs
from inosgd.data import files

with needs("data"):
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

ROWS_AT_ONCE = 1 << 16
BYTES_PER_VALUE = 8
"""What a number takes in memory at most; texts are counted apart."""


def open_parquet(path: Path) -> Any:
    """The file, with its columns of texts as references."""
    plain = pyarrow.parquet.ParquetFile(path)
    texts = [field.name for field in plain.schema_arrow if _is_text(field.type)]
    return pyarrow.parquet.ParquetFile(path, read_dictionary=texts) if texts else plain


def decode(path: Path, reader: Any, columns: Sequence[str], groups: Sequence[int] | None = None) -> Any:
    """The ``columns`` of all row groups, or of some.

    Guarantee:
        At most `files.LIKELY_EXPANSION` times the file's size, and never less than `files.ALWAYS_ALLOWED` bytes, are
        decoded before a file that holds more is refused.
    """
    chosen = range(reader.metadata.num_row_groups) if groups is None else groups
    _refuse_above_limit(path, _claimed_bytes(reader, columns, chosen))
    schema = pa.schema([(name, plain_type(reader.schema_arrow.field(name).type)) for name in columns])
    pieces, taken = [], 0
    batches = reader.iter_batches(
        batch_size=ROWS_AT_ONCE, row_groups=list(chosen), columns=list(columns), use_threads=False
    )
    for batch in batches:
        taken += sum(_decoded_bytes(column) for column in batch.columns)
        _refuse_above_limit(path, taken)
        pieces.append(pa.record_batch([_written_out(batch.column(name)) for name in columns], schema))
    return pa.Table.from_batches(pieces, schema)


def _claimed_bytes(reader: Any, columns: Sequence[str], groups: Sequence[int]) -> int:
    """By the table of contents: the larger of what pages unpack to and what their values take.

    A column is opened before its entry is asked for, and batches of 0 rows read nothing of it: where an entry
    contradicts itself, Arrow raises when it opens the column, and ends the process when it is asked for the entry.
    """
    indices = [index for index, path in enumerate(reader.reader.column_paths) if path[0] in columns]
    total = 0
    for number in groups:
        list(reader.reader.iter_batches(0, [number], indices, use_threads=False))
        group = reader.metadata.row_group(number)
        for column in map(group.column, indices):
            total += max(column.total_uncompressed_size, BYTES_PER_VALUE * column.num_values)
    return total


def _refuse_above_limit(path: Path, size: int) -> None:
    limit = max(files.ALWAYS_ALLOWED, files.LIKELY_EXPANSION * path.stat().st_size)
    if size > limit:
        raise files.refuse(
            path, f"it decodes to more than {limit:,} bytes, which is unlikely for its size; write it again, in parts"
        )


def _decoded_bytes(column: Any) -> int:
    if not (pa.types.is_dictionary(column.type) and _is_text(column.type.value_type)):
        return int(column.nbytes)
    lengths = pa.compute.binary_length(column.dictionary).take(column.indices)
    return int(pa.compute.sum(lengths, min_count=0).as_py()) + BYTES_PER_VALUE * len(column)


def _written_out(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def plain_type(kind: Any) -> Any:
    """The type of what a column refers to; of any other column, its own."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_one(kind) for is_one in texts)
