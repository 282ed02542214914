"""Parquet files that stay on disk: batches as from memory, from the row groups that they lie in alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.parquet import ParquetExamples, ParquetRows
from inosgd.errors import InvalidArgumentError
from inosgd.examples import ExampleStore, as_store

COUNTS = (23, 9, 31)
COLUMNS = ("half", "whole", "pair", "yes", "name")


def written(folder, count: int, start: int, rows_per_group: int = 5, **columns) -> object:
    """A file whose rows are numbered from ``start``."""
    rows = np.arange(start, start + count)
    table = pa.table(
        {
            "half": (rows / 4).astype(np.float16),
            "whole": rows.astype(np.uint8),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(rows, 2).astype(np.float32)), 2),
            "yes": rows % 2 == 0,
            "name": [f"row {row}" for row in rows],
            **columns,
        }
    )
    path = folder / f"rows-{start}.parquet"
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    return [written(folder, count, start) for count, start in zip(COUNTS, (0, 23, 32), strict=True)]


@given(st.lists(st.lists(st.integers(0, 62), max_size=70), min_size=1, max_size=3), st.sampled_from([0, 200, 1 << 20]))
def test_batches_are_those_of_memory_whatever_is_kept(files, batches, cache_bytes):
    examples = ParquetExamples.open(files, {"x": ("half", "pair"), "y": "yes"}, cache_bytes=cache_bytes)
    assert len(examples) == 63
    for rows in batches:
        batch = examples.take(np.array(rows, dtype=np.int64))
        half = torch.tensor(rows, dtype=torch.float16) / 4
        pair = torch.tensor(rows, dtype=torch.float32)[:, None].expand(-1, 2)
        wanted = {"x": (half, pair), "y": torch.tensor([row % 2 == 0 for row in rows], dtype=torch.bool)}
        torch.testing.assert_close(batch, wanted, rtol=0, atol=0)


@given(st.lists(st.integers(0, 62), max_size=40))
def test_only_the_row_groups_that_are_hit_are_read(files, rows):
    stored = ParquetRows.open(files, {"name": "a test"}, 0)
    found = stored.take(np.array(rows, dtype=np.int64))
    assert found.column_names == ["name"]
    assert found.column("name").to_pylist() == [f"row {row}" for row in rows]
    groups = set()
    for row in rows:
        file = 0 if row < 23 else 1 if row < 32 else 2
        groups.add((file, (row - (0, 23, 32)[file]) // 5))
    sizes = {(0, 4): 3, (1, 1): 4, (2, 6): 1}
    assert stored.rows_read == sum(sizes.get(group, 5) for group in groups)


def test_what_is_kept_is_bounded_and_the_oldest_goes(files):
    stored = ParquetRows.open(files, {"whole": "a test"}, 10)  # two row groups of five bytes
    for row, read in ((0, 5), (5, 10), (1, 10), (10, 15), (2, 15), (6, 20)):
        stored.take(np.array([row]))
        assert stored.rows_read == read
    assert stored._kept._bytes <= 10


def test_pieces_are_all_rows_in_order(files):
    starts, found = zip(*ParquetRows.open(files, {"whole": "a test"}).pieces(), strict=True)
    assert [row for piece in found for row in piece.column("whole").to_pylist()] == list(range(63))
    assert starts == tuple(np.cumsum([0, *(piece.num_rows for piece in found)])[:-1])


def test_it_is_a_store_and_a_transform_sees_the_batch(files):
    examples = ParquetExamples.open(files[0], ("half", "whole"), transform=lambda batch: torch.stack(batch, 1).float())
    assert isinstance(examples, ExampleStore)
    assert as_store(examples) is examples
    assert examples.take(np.array([8, 4])).tolist() == [[2, 8], [1, 4]]


def test_a_file_that_changes_under_the_training_is_refused(tmp_path):
    path = written(tmp_path, 20, 0)
    examples = ParquetExamples.open(path, "whole", cache_bytes=0)
    examples.take(np.array([0]))
    written(tmp_path, 30, 0)
    with pytest.raises(InvalidArgumentError, match="changed, replaced or removed while it was in use"):
        examples.take(np.array([0]))


def test_missing_values_are_refused_when_they_are_taken(tmp_path):
    whole = pa.array([None if row == 7 else row for row in range(20)])
    pair = pa.array([[1.0, None if row == 3 else 2.0] for row in range(20)], pa.list_(pa.float32(), 2))
    path = written(tmp_path, 20, 0, whole=whole, pair=pair)
    examples = ParquetExamples.open(path, ("whole", "pair"))
    examples.take(np.array([0, 6]))
    with pytest.raises(InvalidArgumentError, match="column 'whole', row 8: it is missing"):
        examples.take(np.array([9, 7]))
    with pytest.raises(InvalidArgumentError, match="column 'pair', row 4: it is missing"):
        examples.take(np.array([0, 3]))


def test_what_cannot_be_examples_is_refused(tmp_path, files):
    with pytest.raises(InvalidArgumentError, match="column 'name' holds values of type string; give numbers"):
        ParquetExamples.open(files, ("whole", "name"))
    with pytest.raises(InvalidArgumentError, match=r"there is no column 'wole' \(columns\); did you mean 'whole'"):
        ParquetExamples.open(files, "wole")
    with pytest.raises(InvalidArgumentError, match="there is no such file"):
        ParquetExamples.open(tmp_path / "none.parquet", "whole")
    with pytest.raises(InvalidArgumentError, match="at least one Parquet file"):
        ParquetExamples.open([], "whole")
    with pytest.raises(InvalidArgumentError, match="give 0 to 62"):
        ParquetExamples.open(files, "whole").take(np.array([63]))
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(InvalidArgumentError, match="cannot be read as Parquet"):
        ParquetExamples.open(tmp_path / "text.parquet", "whole")
    other = written(tmp_path, 20, 0, whole=np.zeros(20))
    with pytest.raises(InvalidArgumentError, match="differ in type"):
        ParquetExamples.open([*files, other], "whole")
    empty = written(tmp_path, 0, 99)
    with pytest.raises(InvalidArgumentError, match="no rows in it"):
        ParquetExamples.open(empty, "whole")
