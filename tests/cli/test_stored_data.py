"""Commands on studies whose data stay on disk, and on images that a table lists: train, join, resume, predict."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.test_train import interrupted_run, same_bits
from tests.study.test_opening import write_list
from tests.study.test_stored import ON_DISK, array_study, arrays, columns, write_arrays, write_parquet
from tests.study.writers import IMAGE_STUDY, write_images, write_study

NO_REPORT = ("--json", "--no-report")


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_study_on_disk_trains_resumes_and_predicts(inosgd, tmp_path, monkeypatch, kind):
    if kind == "npy":
        write_arrays(tmp_path)
        array_study(tmp_path, "npy")
        data = tmp_path / "cases" / "inputs.npy"
    else:
        write_parquet(tmp_path / "cases.parquet")
        write_study(tmp_path, ON_DISK)
        data = tmp_path / "cases.parquet"
    whole = inosgd("train", "study.toml", "--out", "whole", "--seed", 4, *NO_REPORT)
    assert whole.code == 0, whole.err
    interrupted_run(inosgd, tmp_path, monkeypatch, 6, "--seed", 4)
    assert inosgd("resume", "run", *NO_REPORT).code == 0
    assert same_bits(tmp_path / "whole/model", tmp_path / "run/model")
    assert len(inosgd("predict", "run/model", "cases" if kind == "npy" else "cases.parquet").out.splitlines()) == 91
    if kind == "npy":
        np.save(data, arrays()["inputs"][::-1].copy())
    else:
        write_parquet(data, age=columns()["age"][::-1])
    assert "is not the file that this run began with" in inosgd("resume", "run", "--no-report").err


def test_images_that_a_table_lists_join_a_run(inosgd, tmp_path, monkeypatch):
    write_images(tmp_path / "pictures", count=60, classes=2)
    write_list(tmp_path, tmp_path / "pictures")
    listed = 'index = "list.csv"\ntarget = "label"\nowner = "who"'
    (tmp_path / "study.toml").write_text(IMAGE_STUDY.replace('layout = "owner/class"', listed))
    interrupted_run(inosgd, tmp_path, monkeypatch, 1)
    write_images(tmp_path / "more", count=30, classes=2)
    write_list(tmp_path / "more", tmp_path / "more", owner="newcomer")
    assert inosgd("budgets", "run", "--add", "newcomer=5", "--data", "more", "--yes").code == 0
    resumed = inosgd("resume", "run", *NO_REPORT)
    assert resumed.code == 0, resumed.err
    assert 15 < json.loads(resumed.out)["owners"]["newcomer"]["examples"] <= 30
