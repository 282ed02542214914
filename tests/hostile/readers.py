"""Every reader of files, with a good file for each to spoil. `checks/fuzzing.py` uses the same list for hours."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image

from inosgd import Plan, SeededSource
from inosgd.data.arrays import array_numbers, array_texts, read_arrays
from inosgd.data.budgets import read_owner_table
from inosgd.data.image_folder import ImageFormat, inside, read_images
from inosgd.data.mapped import MappedExamples
from inosgd.data.npz import names_in, read_npz
from inosgd.data.parquet import ParquetExamples
from inosgd.data.pieces import table_pieces
from inosgd.data.tables import read_table
from inosgd.files import sha256
from inosgd.ledger.history import KnownCheckpoint
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import START, Position, encode
from inosgd.models.saved import read_description
from inosgd.paper.datasets.cifar import read_records
from inosgd.paper.datasets.idx import read_idx
from inosgd.runs.checkpoint import read_checkpoint
from inosgd.runs.folder import RunFolder
from inosgd.runs.resuming import begin, train_durably
from inosgd.runs.saving import restore
from inosgd.study.budgets import read_budgets
from inosgd.study.data import load_data
from inosgd.study.prediction import predict
from inosgd.study.reading import read_study
from tests import tiny
from tests.data.writers import cifar_bytes, idx_bytes
from tests.study.writers import DROPPED, EXPORTED, STUDY, exported_rows, table_text, write_exported, write_study


@dataclass(frozen=True)
class Reader:
    """A function from a path, the name that the file must have there, and the content of a good one."""

    name: str
    read: Callable[[Path], Any]
    file: str
    good: Callable[[], bytes]

    def on(self, content: bytes, folder: Path) -> Any:
        """What the reader makes of ``content``."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return self.read(path)


def _npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _image(kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    pixels = (np.arange(20 * 20 * 3) % 251).astype(np.uint8).reshape(20, 20, 3)
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def _parquet() -> bytes:
    stream = io.BytesIO()
    table = pa.table({"owner": ["a", "b"] * 20, "epsilon": [1.0, 2.0] * 20, "delta": [1e-5] * 40})
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


@cache
def run_files() -> dict[str, bytes]:
    """The files of a short finished run."""
    with tempfile.TemporaryDirectory() as folder:
        run = tiny.new_run(Path(folder))
        with run.lock() as locked:
            trainer, model, optimizer = tiny.parts(tiny.PLAN, torch.optim.Adam)
            state = begin(locked, trainer, model, optimizer, SeededSource(0))
            train_durably(locked, trainer, state, every=6)
            state.ledger.close()
        return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


CHECKPOINT = "step-00000012.record-00000018"


def _from_run(name: str) -> Callable[[], bytes]:
    return lambda: run_files()[name]


def _checkpoint_part(name: str) -> Reader:
    def read(path: Path) -> None:
        for other in ("model.safetensors", "optimizer.safetensors", "state.json", "streams.json"):
            if other != name:
                (path.parent / other).write_bytes(run_files()[f"checkpoints/{CHECKPOINT}/{other}"])
        _restore(path.parent)

    return Reader(f"checkpoint {name}", read, f"{CHECKPOINT}/{name}", _from_run(f"checkpoints/{CHECKPOINT}/{name}"))


class _AnyLedger:
    """Stands in for the ledger of the run."""

    def resume_at(self, step: int) -> None:
        pass


def _restore(folder: Path) -> None:
    trainer, model, optimizer = tiny.parts(tiny.PLAN, torch.optim.Adam)
    from inosgd import TrainingState

    state = TrainingState.start(trainer, model, optimizer, SeededSource(0))
    state.ledger = _AnyLedger()
    digests = [sha256((folder / name).read_bytes()) for name in ("state.json", "streams.json", "streams.json")]
    restore(read_checkpoint(folder, KnownCheckpoint(folder.name, 12, *digests, 1)), state)


def _run_json(path: Path) -> None:
    run = RunFolder.open(path.parent)
    run.description()


def _ledger(path: Path) -> None:
    Ledger.read(path)


def _study(path: Path) -> None:
    (path.parent / "cases.csv").write_text(table_text(), encoding="utf-8")
    load_data(read_study(path))


def _exported_study(path: Path) -> None:
    write_exported(path.parent / "cases.csv", [row for row in exported_rows() if row["ill"] and row["owner"]])
    load_data(read_study(path))


def _arrays(path: Path) -> None:
    found = read_arrays(path, {"inputs": "a", "target": "b", "owner": "c"})
    array_numbers(path, "inputs", found["inputs"])
    array_texts(path, "owner", found["owner"])


def _named_arrays(path: Path) -> None:
    names_in(path)
    read_npz(path, "features", "labels")


def _table(path: Path) -> None:
    table = read_table([path], {"owner": "a", "epsilon": "b"})
    table.texts("owner")
    table.numbers("epsilon")


def _mapped(path: Path) -> None:
    MappedExamples.open(path).take(np.array([0]))


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(12, dtype=np.float32).reshape(4, 3))
    return file.getvalue()


def _row_groups(path: Path) -> None:
    ParquetExamples.open(path, "epsilon").take(np.array([0]))


def _index(path: Path) -> None:
    table = read_table([path], {"file": "data.file"})
    inside(path.parent, table.texts("file").tolist(), path)


@cache
def saved_model() -> dict[str, bytes]:
    """The files of a model that a study trained."""
    from inosgd.study.from_file import study_from
    from inosgd.study.running import begin_training, create_run, finish, prepare

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = write_study(folder, ("steps = 12", "steps = 2"), EXPORTED, DROPPED)
        write_exported(folder / "cases.csv", exported_rows())
        prepared = prepare(study_from(read_study(study)))
        run = create_run(folder / "run", prepared)
        with run.lock() as locked:
            finish(locked, prepared, begin_training(locked, prepared), every=2)
        return {path.name: path.read_bytes() for path in (run.path / "model").iterdir()}


def _model_part(name: str) -> Reader:
    def read(path: Path) -> None:
        for other, content in saved_model().items():
            if other != name:
                (path.parent / other).write_bytes(content)
        read_description(path.parent)
        data = path.parent / "new.csv"
        write_exported(data, exported_rows(6))
        list(predict(path.parent, data).parts)

    return Reader(f"model {name}", read, name, lambda: saved_model()[name])


def _exported(path: Path) -> None:
    study = write_study(path.parent, EXPORTED, DROPPED, ('"cases.csv"', f'"{path.name}"'), data=b"")
    load_data(read_study(study))


def _exported_bytes(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_exported(Path(folder) / name, exported_rows(30))
        return (Path(folder) / name).read_bytes()


def _pieces(path: Path) -> None:
    for _ in table_pieces(path, {"age": "a test", "dose": "a test"}, ["id"]):
        pass


def _images(path: Path) -> None:
    read_images([path], 1, ImageFormat(20, 20, 3, resize=True))


READERS = {
    reader.name: reader
    for reader in (
        Reader("idx", lambda path: read_idx(path, (4, 4)), "x.idx", lambda: idx_bytes(np.arange(80).reshape(5, 4, 4))),
        Reader(
            "idx, packed",
            lambda path: read_idx(path, (4, 4)),
            "x.gz",
            lambda: gzip.compress(idx_bytes(np.arange(80).reshape(5, 4, 4)), mtime=0),
        ),
        Reader("cifar", lambda path: read_records(path, 1), "x.bin", lambda: cifar_bytes(np.arange(3))),
        Reader(
            "npz",
            _named_arrays,
            "x.npz",
            lambda: _npz(features=np.ones((4, 3), np.float16), labels=np.arange(4)),
        ),
        Reader(
            "arrays",
            _arrays,
            "x.npz",
            lambda: _npz(inputs=np.ones((4, 3)), target=np.arange(4), owner=np.array(["a", "b", "a", "b"])),
        ),
        Reader("png", _images, "x.png", lambda: _image("PNG")),
        Reader("jpeg", _images, "x.jpg", lambda: _image("JPEG")),
        Reader("gif", _images, "x.gif", lambda: _image("GIF")),
        Reader("bmp", _images, "x.bmp", lambda: _image("BMP")),
        Reader("tiff", _images, "x.tif", lambda: _image("TIFF", compression="tiff_lzw")),
        Reader("webp", _images, "x.webp", lambda: _image("WEBP")),
        Reader(
            "owners csv",
            lambda path: read_owner_table(path, 1e-5),
            "owners.csv",
            lambda: b'owner,epsilon,delta,size\na,1.0,1e-5,10\n"b, c",2.5,,20\n',
        ),
        Reader(
            "budgets csv",
            lambda path: read_budgets(path, 1e-5),
            "budgets.csv",
            lambda: b'owner,epsilon,delta\na,1.0,1e-5\n"b, c",2.5,1e-6\n',
        ),
        Reader("parquet", _table, "x.parquet", _parquet),
        Reader("csv in pieces", _pieces, "x.csv", lambda: b'id,age,dose\na,1,0.5\n"b\nc",2,\nd,3,1\n'),
        Reader(
            "json lines",
            _pieces,
            "x.jsonl",
            lambda: b'{"id": 1, "age": 3, "dose": null}\n\n{"id": "x", "age": true, "dose": 1e5}\n',
        ),
        Reader("npy", _mapped, "x.npy", _npy),
        Reader("parquet on disk", _row_groups, "x.parquet", _parquet),
        Reader("index", _index, "index.csv", lambda: b"file,class\nindex.csv,a\n./index.csv,b\n"),
        Reader("exported csv", _exported, "x.csv", lambda: _exported_bytes("x.csv")),
        Reader("exported parquet", _exported, "x.parquet", lambda: _exported_bytes("x.parquet")),
        Reader("exported study", _exported_study, "study.toml", lambda: STUDY.replace(*EXPORTED).encode()),
        Reader("study", _study, "study.toml", lambda: STUDY.encode()),
        Reader(
            "plan",
            lambda path: Plan.from_json(path.read_text("utf-8", "replace")),
            "plan.json",
            _from_run("plans/plan-0001.json"),
        ),
        Reader("ledger", _ledger, "ledger.jsonl", _from_run("ledger.jsonl")),
        Reader("run", _run_json, "run.json", _from_run("run.json")),
        _checkpoint_part("state.json"),
        _checkpoint_part("streams.json"),
        _checkpoint_part("model.safetensors"),
        _checkpoint_part("optimizer.safetensors"),
        _model_part("model.json"),
        _model_part("model.safetensors"),
    )
}


# -- Files whose form is right and whose content is not: digests and chains are made to fit, as a forger would --------


def forged_state(fields: Any) -> bytes:
    """A JSON file of a checkpoint, which a forged ledger would know."""
    return json.dumps(fields).encode()


def forged_ledger(bodies: Any) -> bytes:
    """Records whose chain holds."""
    position, lines = Position(0, START), []
    for body in bodies if isinstance(bodies, list) else [bodies]:
        line, position = encode(body if isinstance(body, dict) else {"kind": body}, position)
        lines.append(line)
    return b"".join(lines)


def ledger_bodies() -> list[Any]:
    """What the records of the good ledger say."""
    lines = [json.loads(line) for line in run_files()["ledger.jsonl"].splitlines()]
    return [{key: value for key, value in line.items() if key not in ("record", "previous", "hash")} for line in lines]


FORGERIES: dict[str, tuple[str, Callable[[], Any], Callable[[Any], bytes]]] = {
    "plan": ("plan", lambda: json.loads(run_files()["plans/plan-0001.json"]), lambda tree: json.dumps(tree).encode()),
    "ledger": ("ledger", ledger_bodies, forged_ledger),
    "run": ("run", lambda: json.loads(run_files()["run.json"]), lambda tree: json.dumps(tree).encode()),
    "checkpoint": (
        "checkpoint state.json",
        lambda: json.loads(run_files()[f"checkpoints/{CHECKPOINT}/state.json"]),
        forged_state,
    ),
    "streams": (
        "checkpoint streams.json",
        lambda: json.loads(run_files()[f"checkpoints/{CHECKPOINT}/streams.json"]),
        forged_state,
    ),
    "model": (
        "model model.json",
        lambda: json.loads(saved_model()["model.json"]),
        lambda tree: json.dumps(tree).encode(),
    ),
}
"""For each JSON format: its reader, the tree of a good file, and from a tree to a file."""


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every node of a JSON tree."""
    found = [path]
    if isinstance(tree, dict):
        for key, value in tree.items():
            found += places(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree[:4]):
            found += places(value, (*path, index))
    return found


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The tree with ``value`` in one place."""
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copy


def nested(depth: int) -> Any:
    """Lists in lists."""
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "../../../../etc/passwd",
    "\0",
    "x" * 10_000,
    [],
    {},
    [None],
    {"a": []},
    nested(200),
)


def zip_of(**entries: bytes) -> bytes:
    """A zip archive of these files, packed as far as it goes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def emptied(folder: Path) -> Path:
    """The folder without what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
