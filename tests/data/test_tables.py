"""Tables are read strictly, and the same from text and from Parquet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.data.tables import closest, column_names, read_table, shortened
from inosgd.errors import InvalidArgumentError

WANTED = {"a": "first", "b": "second"}


def read(folder, content: bytes, name: str = "t.csv", **options):
    path = folder / name
    path.write_bytes(content)
    return read_table([path], WANTED, **options)


def write_parquet(path, **columns):
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("content", "name", "delimiter"),
    [
        (b"a,b\n1,x\n2.5,y\n", "t.csv", None),
        (b"\xef\xbb\xbfa,b\r\n 1 ,x\r\n2.5, y \r\n", "t.csv", None),
        (b"b;a;c\nx;1;\ny;2.5;\n", "t.csv", ";"),
        (b"a\tb\n1\tx\n2.5\ty\n", "t.TSV", None),
        (b'"a","b"\n"1","x"\n"2.5","y"', "t.csv", None),
        (b"a,b\n\n1,x\n\n2.5,y\n\n\n", "t.csv", None),
    ],
    ids=["plain", "BOM", "semicolons", "tabs", "quoted", "blank lines"],
)
def test_text_tables(tmp_path, content, name, delimiter):
    table = read(tmp_path, content, name, delimiter=delimiter)
    assert table.numbers("a").tolist() == [1.0, 2.5]
    assert table.texts("b").tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([1, 2], ["x", "y"]),
        ([1.0, 2.0], pa.array(["x", "y"]).dictionary_encode()),
        (["1", "2"], pa.array(["x", "y"], pa.large_string())),
    ],
)
def test_parquet_tables(tmp_path, numbers, texts):
    path = write_parquet(tmp_path / "t.parquet", a=numbers, b=texts)
    table = read_table([path], WANTED)
    assert table.numbers("a").tolist() == [1.0, 2.0]
    assert table.texts("b").tolist() == ["x", "y"]
    assert column_names(path) == ["a", "b"]


def test_a_quoted_cell_may_hold_delimiters_and_lines(tmp_path):
    table = read(tmp_path, b'a,b\n1,"x, or\ny"\n2,"z ""q"""\n')
    assert table.texts("b").tolist() == ["x, or\ny", 'z "q"']


@pytest.mark.parametrize("rows", [b'2,"y\n3,z\n', b'2,"y\n' + b"3,z\n" * 50_000])
def test_an_open_quote_does_not_swallow_the_rest(tmp_path, rows):
    with pytest.raises(InvalidArgumentError, match=r"t\.csv: row 2: a cell opens a quote"):
        read(tmp_path, b"a,b\n1,x\n" + rows)


def test_a_single_quote_within_a_cell_is_a_character(tmp_path):
    assert read(tmp_path, b'a,b\n1,5" pipe\n').texts("b").tolist() == ['5" pipe']


def test_several_files_are_read_as_one(tmp_path):
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text("a,b\n1,x\n")
    table = read_table([tmp_path / "one.csv", tmp_path / "two.csv"], WANTED)
    assert table.numbers("a").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("columns", "column", "words"),
    [
        ({"a": [1.0, None], "b": ["x", "y"]}, "a", "column 'a', row 2"),
        ({"a": [True, False], "b": ["x", "y"]}, "a", "type bool"),
        ({"a": [1.0, float("nan")], "b": ["x", "y"]}, "a", "column 'a', row 2"),
        ({"a": [1, 2], "b": [None, "y"]}, "b", "column 'b', row 1"),
        ({"a": [1, 2], "b": [1.0, 2.0]}, "b", "text or whole numbers"),
        ({"a": [1, 2], "b": [[1], [2]]}, "b", "type list"),
    ],
)
def test_parquet_columns_that_cannot_be_used(tmp_path, columns, column, words):
    table = read_table([write_parquet(tmp_path / "t.parquet", **columns)], WANTED)
    with pytest.raises(InvalidArgumentError, match=words):
        table.numbers(column) if column == "a" else table.texts(column)


@pytest.mark.parametrize("cell", ["1_000", "0x10", "1,5", "one", "1 2", "--1", "1e", "١"])
def test_what_is_no_number(tmp_path, cell):
    table = read(tmp_path, f'a,b\n1,x\n"{cell}",y\n'.encode())
    with pytest.raises(InvalidArgumentError, match=r"t\.csv: column 'a', row 2: .* is not a number"):
        table.numbers("a")


def test_whole_numbers_count_as_text_and_empty_text_only_where_it_may(tmp_path):
    table = read(tmp_path, b"a,b\n1,\n")
    assert table.texts("a").tolist() == ["1"]
    assert table.texts("b", empty=True).tolist() == [""]
    with pytest.raises(InvalidArgumentError, match="is empty"):
        table.texts("b")


def test_floats_count_as_text_where_all_are_0_or_1(tmp_path):
    table = read_table([write_parquet(tmp_path / "t.parquet", a=[0.0, 1.0, 1.0], b=[0.0, 1.0, 0.5])], WANTED)
    assert table.texts("a").tolist() == ["0", "1", "1"]
    with pytest.raises(InvalidArgumentError, match="text or whole numbers"):
        table.texts("b")


CELLS = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.floats(-1e12, 1e12), CELLS), min_size=1, max_size=10))
def test_what_the_csv_module_writes_is_read_back(tmp_path_factory, rows):
    import csv

    path = tmp_path_factory.mktemp("tables") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["a", "b"], *rows])
    table = read_table([path], WANTED)
    assert table.numbers("a").tolist() == [number for number, _ in rows]
    assert table.texts("b").tolist() == [text for _, text in rows]


def test_hints():
    assert closest("agee", ["age", "sex"]) == "did you mean 'age'?"
    assert closest("zzz", ["age", "sex"]) == "choose one of 'age', 'sex'"
    assert shortened("x" * 100, 10) == "xxxxxxx..."
