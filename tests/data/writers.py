"""Small files in the formats of the publishers."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from inosgd.paper.datasets.cardiotocography import RANGES
from inosgd.paper.datasets.cifar_classes import CIFAR_100
from inosgd.paper.datasets.embeddings import CHEST_XRAY_FILES, CIFAR_10_FILES, FISH_AND_VEHICLES, FISH_VEHICLES_FILES
from inosgd.paper.datasets.names import LANGUAGES


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, per_class: int = 3) -> None:
    (folder / "mnist").mkdir()
    for part in ("train", "t10k"):
        labels = np.repeat(np.arange(10), per_class)
        images = np.broadcast_to(labels[:, None, None], (len(labels), 28, 28)) * 20
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            (folder / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))


def cifar_bytes(*labels: np.ndarray) -> bytes:
    pixels = np.arange(len(labels[0]) * 3072).reshape(-1, 3072) % 251
    return np.column_stack([*labels, pixels]).astype(np.uint8).tobytes()


def write_cifar(folder: Path, per_class: int = 2) -> None:
    (folder / "cifar-10-batches-bin").mkdir()
    (folder / "cifar-100-binary").mkdir()
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        path = folder / "cifar-10-batches-bin" / f"{name}.bin"
        path.write_bytes(cifar_bytes(np.repeat(np.arange(10), per_class)))
    for name in ("train", "test"):
        fine = np.repeat(np.arange(100), per_class)
        (folder / "cifar-100-binary" / f"{name}.bin").write_bytes(cifar_bytes(fine % 20, fine))


def write_cardiotocography(folder: Path, per_class: int = 10) -> None:
    (folder / "cardiotocography").mkdir()
    lines = [",".join([*RANGES, "CLASS", "NSP"])]
    middle = [str((low + high) / 2) for low, high in RANGES.values()]
    lines += [",".join([*middle, "9", str(outcome)]) for outcome in (1, 2, 3) for _ in range(per_class)]
    (folder / "cardiotocography" / "CTG.csv").write_text("\n".join(lines) + "\n")


def write_names(folder: Path, per_class: int = 5) -> None:
    (folder / "names").mkdir()
    for language in LANGUAGES:
        names = [f"{language}{number}" for number in range(per_class)]
        (folder / "names" / f"{language}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def write_chest_xray(folder: Path, per_class: int = 4) -> None:
    (folder / "chest_xray").mkdir(exist_ok=True)
    labels = np.repeat(np.arange(3, dtype=np.uint8), per_class)
    images = np.broadcast_to(labels[:, None, None], (len(labels), 64, 64)).astype(np.uint8)
    for part in ("train", "test"):
        np.savez_compressed(folder / "chest_xray" / f"{part}_images_64.npz", images=images, labels=labels)


def features_of(labels: np.ndarray, width: int = 8) -> np.ndarray:
    return np.random.default_rng(0).normal(labels[:, None] % 5, 1.0, size=(len(labels), width)).astype(np.float16)


def write_embeddings(folder: Path, per_class: int = 4) -> None:
    (folder / "chest_xray").mkdir(exist_ok=True)
    (folder / "embeddings").mkdir()
    fine = np.repeat([CIFAR_100.index(name) for name in FISH_AND_VEHICLES], per_class).astype(np.uint8)
    classes = np.repeat(np.arange(10, dtype=np.uint8), per_class)
    outcomes = np.repeat(np.arange(3, dtype=np.uint8), per_class)
    for file in FISH_VEHICLES_FILES:
        np.savez_compressed(folder / file, features=features_of(fine), fine=fine)
    for file in CIFAR_10_FILES:
        np.savez_compressed(folder / file, features=features_of(classes), labels=classes)
    for file in CHEST_XRAY_FILES:
        np.savez_compressed(folder / file, features=features_of(outcomes), labels=outcomes)


def write_everything(folder: Path) -> None:
    write_mnist(folder)
    write_cifar(folder)
    write_cardiotocography(folder)
    write_names(folder)
    write_chest_xray(folder)
    write_embeddings(folder)
