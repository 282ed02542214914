"""Small files that claim or unpack to enormous content are refused before there is room made for it."""

from __future__ import annotations

import gzip
import io
import resource
import struct
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from inosgd.data import files
from inosgd.data.arrays import read_arrays
from inosgd.data.image_folder import ImageFormat, read_images
from inosgd.data.npz import read_npz
from inosgd.data.parquet import ParquetRows
from inosgd.data.tables import read_table
from inosgd.errors import InvalidArgumentError
from inosgd.paper.datasets.idx import read_idx
from tests.hostile.readers import zip_of


@pytest.fixture(autouse=True)
def _little_memory():
    """Room for the process as it is and a quarter of a gigabyte more: whoever believes a bomb dies of it."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 28), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def npy(shape: tuple[int, ...], content: bytes, dtype: str = "|u1") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    padding = b" " * (-(10 + len(header) + 1) % 64)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + len(padding) + 1) + header + padding + b"\n" + content


SHAPES = [(10**12,), (2**62,), (2**31, 2**31, 2**31), (-1,), (-5, -5), (10**400,), (0, 10**18)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "read", [lambda path: read_npz(path, "x"), lambda path: read_arrays(path, {"x": "data.inputs"})]
)
def test_a_header_that_claims_an_absurd_shape_is_refused(shape, read, tmp_path):
    path = tmp_path / "bomb.npz"
    path.write_bytes(zip_of(**{"x.npy": npy(shape, b"1234")}))
    with pytest.raises(InvalidArgumentError):
        read(path)


SMALL_BOMB = 1 << 26


@pytest.fixture
def small_bombs(monkeypatch):
    """Bombs take as long to make as to unpack: these are small, and so is what is allowed."""
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", SMALL_BOMB >> 1)


@pytest.mark.parametrize(
    "read", [lambda path: read_npz(path, "x"), lambda path: read_arrays(path, {"x": "data.inputs"})]
)
def test_a_zip_bomb_is_refused_before_it_is_unpacked(read, tmp_path, small_bombs):
    """The archive's own figures are right, and a thousand times what there is."""
    size = SMALL_BOMB
    head = npy((size - 128,), b"")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    checksum, parts = zlib.crc32(head), [packer.compress(head)]
    for start in range(len(head), size, 1 << 20):
        piece = bytes(min(1 << 20, size - start))
        parts.append(packer.compress(piece))
        checksum = zlib.crc32(piece, checksum)
    content = b"".join([*parts, packer.flush()])
    name, fields = b"x.npy", struct.pack("<HHHHHIII", 20, 0, 8, 0, 0, checksum, len(content), size)
    local = b"PK\x03\x04" + fields + struct.pack("<HH", len(name), 0) + name + content
    central = (
        b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, 0) + name
    )
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    path = tmp_path / "bomb.npz"
    path.write_bytes(local + central + end)
    assert path.stat().st_size < size >> 9
    with pytest.raises(InvalidArgumentError, match=r"bomb|more than the file can hold"):
        read(path)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path, small_bombs):
    size = SMALL_BOMB
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", size // 784, 28, 28))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < size >> 9
    with pytest.raises(InvalidArgumentError, match=r"bomb|more than the file can hold"):
        read_idx(path, (28, 28))


def test_real_data_is_never_taken_for_a_bomb(tmp_path):
    """Images of 95% background, as handwritten digits are, are nowhere near the limit."""
    rng = np.random.default_rng(0)
    images = (rng.random((500, 28, 28)) < 0.05).astype(np.uint8) * 255
    packed = gzip.compress(images.tobytes(), 9)
    assert images.nbytes / len(packed) < files.LIKELY_EXPANSION / 4
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1000, 1000)))  # all zeros, and small enough to be harmless
    assert read_npz(tmp_path / "x.npz", "x")["x"].shape == (1000, 1000)


def png(width: int, height: int, rows: int) -> bytes:
    """A grey PNG that claims a size and has so many rows of zeros."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    content = b"".join([*(packer.compress(bytes(width + 1)) for _ in range(rows)), packer.flush()])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


@pytest.mark.parametrize("resize", [False, True])
@pytest.mark.parametrize(
    ("width", "height", "rows"), [(20_000, 20_000, 1000), (9_000, 9_000, 9_000), (2**31 - 1, 2, 0)]
)
def test_an_image_bomb_is_refused_before_it_is_decoded(width, height, rows, resize, tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(width, height, rows))
    with pytest.raises(InvalidArgumentError):
        read_images([path], 1, ImageFormat(28, 28, 1, resize))


def test_an_image_format_of_absurd_size_is_refused():
    for size in ((100_000, 100_000), (2**40, 1)):
        with pytest.raises(InvalidArgumentError, match="size"):
            ImageFormat(*size, 3)


def test_a_picture_in_a_language_that_runs_programs_is_not_opened(tmp_path):
    """Pillow hands PostScript to an interpreter; a file that is only called .png is not even looked at as such."""
    path = tmp_path / "picture.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n(touch) run\n%%EOF\n")
    with Image.open(path) as opened:
        assert opened.format == "EPS"  # the control: Pillow by itself would
    with pytest.raises(InvalidArgumentError, match="cannot be read as an image"):
        read_images([path], 1, ImageFormat(20, 20, 3))


def test_a_checkpoint_that_claims_more_than_it_holds_is_refused(tmp_path):
    from safetensors import SafetensorError
    from safetensors.torch import load

    claim = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    with pytest.raises(SafetensorError):
        load(struct.pack("<Q", len(claim)) + claim)
    with pytest.raises(SafetensorError):
        load(struct.pack("<Q", 2**63))


def test_the_limit_on_memory_is_in_force():
    """The control: without a refusal, the same bombs end in a MemoryError here."""
    program = """
        import resource, numpy as np
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        try:
            np.ones(1 << 28)
        except MemoryError:
            print("no room")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "no room\n"
    with pytest.raises(MemoryError):
        np.ones(1 << 29)
    assert io.BytesIO(b"still alive").read() == b"still alive"


@pytest.mark.parametrize("column", ["texts", "numbers"])
@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_table([path], {"x": "data.target"}),
        lambda path: ParquetRows.open([path], {"x": "data.target"}).take(np.array([0])),
    ],
    ids=["table", "rows"],
)
def test_a_parquet_bomb_is_refused_before_it_is_written_out(read, column, tmp_path, small_bombs):
    """One long text stands in every row, or one number: a few kilobytes would become hundreds of megabytes."""
    path, rows = tmp_path / "bomb.parquet", 200_000
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 4000]))
    kinds = {"texts": values, "numbers": pa.array(np.zeros(40 * rows))}
    pyarrow.parquet.write_table(pa.table({"x": kinds[column]}), path, store_schema=False, row_group_size=40 * rows)
    assert path.stat().st_size < 100_000
    with pytest.raises(InvalidArgumentError, match="decodes to more than"):
        read(path)
