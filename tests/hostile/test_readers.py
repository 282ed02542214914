"""Whatever bytes a reader meets, it reads them or raises an error of ours; nothing else, and not for long."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inosgd.errors import InosgdError, InvalidArgumentError
from tests.hostile.readers import FORGERIES, READERS, STRANGE_VALUES, emptied, nested, places, replaced
from tests.properties import tries

SLOW = {"checkpoint", "streams", "model"}


@st.composite
def spoiled(draw, good: bytes) -> bytes:
    """A good file with a few bytes changed, cut out, repeated or put in."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from([0, 1, 2, 8, 64, len(content)]))
        content[place : place + length] = draw(
            st.one_of(
                st.binary(max_size=12),
                st.sampled_from(
                    [b"\xff" * 8, b"\0" * 8, b"9" * 400, b"1e999", b"[" * 3000, b"{" * 3000, b"\r\n", b'"']
                ),
                st.integers(0, len(good)).map(lambda start: good[start : start + 40]),
            )
        )
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_a_good_file_is_read(name, tmp_path):
    READERS[name].on(READERS[name].good(), tmp_path)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", READERS)
def test_a_spoiled_file_is_read_or_refused(name, tmp_path_factory):
    reader, folder = READERS[name], tmp_path_factory.mktemp("spoiled")

    @tries(5 if name.startswith(("checkpoint", "model")) else 15)
    @given(st.one_of(spoiled(reader.good()), st.binary(max_size=64)))
    def check(content):
        with suppress(InosgdError):
            reader.on(content, emptied(folder / "files"))

    check()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_read_or_refused(name, tmp_path_factory):
    """Digests and chains fit, as a forger's would: what is left is what the values mean."""
    kind, tree, build = FORGERIES[name]
    good, folder = tree(), tmp_path_factory.mktemp("forged")
    READERS[kind].on(build(good), folder / "good")  # the control: what is built is accepted as it is

    @tries(8 if name in SLOW else 40)
    @given(st.sampled_from(places(good)), st.sampled_from(STRANGE_VALUES))
    def check(place, value):
        with suppress(InosgdError):
            READERS[kind].on(build(replaced(good, place, value)), emptied(folder / "files"))

    check()


@pytest.mark.parametrize(
    "name", ["plan", "run", "checkpoint state.json", "checkpoint streams.json", "model model.json"]
)
@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000, b"nan", b"null", b"[]", b'"x"']
)
def test_deep_and_huge_json_is_refused(name, content, tmp_path):
    with pytest.raises(InosgdError):
        READERS[name].on(content, tmp_path)


@pytest.mark.parametrize("strange", [True, 1.5, 3, None, [], {}, "x"])
@pytest.mark.parametrize("place", [("architecture",), ("architecture", "study"), ("inputs", "notation", "delimiter")])
def test_parts_of_a_model_that_are_of_another_kind_are_refused(place, strange, tmp_path):
    kind, tree, build = FORGERIES["model"]
    changed = json.loads(build(tree()))
    part = changed
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = strange
    may_be_read = place[-1] == "delimiter" and strange is None  # the usual one
    with suppress(InosgdError) if may_be_read else pytest.raises(InosgdError):
        READERS[kind].on(build(changed), tmp_path)


@pytest.mark.parametrize("content", [b"a = " + b"[" * 100_000, b"a = " + b"9" * 100_000, b"a." * 50_000 + b"a = 1"])
def test_deep_and_huge_toml_is_refused(content, tmp_path):
    with pytest.raises(InosgdError):
        READERS["study"].on(content, tmp_path)


def test_parquet_whose_statistics_contradict_its_schema_is_refused(tmp_path):
    """Asked for such statistics Arrow ends the process, so another process reads."""
    good, column = READERS["parquet"].good(), b"\x18\x07epsilon"
    spoiled = good.replace(b"\x25\x02" + column, b"\x25\x00" + column)  # from optional to required
    assert spoiled != good
    (tmp_path / "good.parquet").write_bytes(good)
    (tmp_path / "spoiled.parquet").write_bytes(spoiled)
    ended = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.split()) == (0, ["40", "40", "refused", "refused"]), ended.stderr


READ = """
import sys
from pathlib import Path
from inosgd.data.parquet import ParquetRows
from inosgd.data.tables import read_table
from inosgd.errors import InvalidArgumentError
for name in ("good", "spoiled"):
    path = Path(sys.argv[1]) / f"{name}.parquet"
    for read in (lambda: len(read_table([path], {"epsilon": "x"})),
                 lambda: next(ParquetRows.open([path], {"epsilon": "x"}).pieces())[1].num_rows):
        try:
            print(read())
        except InvalidArgumentError:
            print("refused")
"""


@pytest.mark.parametrize(
    "name", ["9" * 400 + ".csv", "a/" * 3000 + "x.csv", "closed/x.csv", "a\\u0000.csv", "none.csv"]
)
def test_a_study_whose_data_cannot_be_looked_for_is_refused(name, tmp_path):
    (tmp_path / "closed").symlink_to("closed")
    with pytest.raises(InvalidArgumentError, match=r"correct (it|the path)") as refused:
        READERS["study"].on(READERS["study"].good().replace(b'"cases.csv"', f'"{name}"'.encode()), tmp_path)
    assert len(str(refused.value)) < 1000


def test_a_ledger_whose_numbers_are_not_numbers_is_refused(tmp_path):
    good = READERS["ledger"].good()
    for strange in (b"Infinity", b"NaN", b"1e999", b'"1"', b"[" * 5000):
        with pytest.raises(InosgdError):
            READERS["ledger"].on(good.replace(b'{"record":3', b'{"record":' + strange), tmp_path)


def test_csv_cells_beyond_the_readers_limit_are_refused(tmp_path):
    huge = b"owner,epsilon,size\n" + b"a" * 200_000 + b",1,1\n"
    with pytest.raises(InvalidArgumentError, match="line"):
        READERS["owners csv"].on(huge, tmp_path)
    with pytest.raises(InvalidArgumentError, match="first line"):
        READERS["owners csv"].on(b"o" * 200_000 + b",epsilon,size\na,1,1\n", tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside.png", "/etc/passwd", "a/../../b.png", "x" * 5000, "a\0b", "~/.ssh/id_rsa", "link.png", ""]
)
def test_names_of_images_that_lead_out_of_their_folder_are_refused(name, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "outside.png").write_bytes(READERS["png"].good())
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    from inosgd.data.image_folder import inside

    with pytest.raises(InvalidArgumentError, match="row 1"):
        inside(folder, [name], folder / "index.csv")


def test_the_fuzzers_values_survive_json():
    """A control of the tests themselves: strange values arrive in files as they are meant."""
    for value in STRANGE_VALUES:
        back = json.loads(json.dumps(value))
        assert back == value or (isinstance(value, float) and math.isnan(back))
    assert json.loads(json.dumps(nested(3))) == [[[0]]]
