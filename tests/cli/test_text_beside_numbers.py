"""Text beside other columns: a dictionary of tensors for a model of the user's own, from a study file alone."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from inosgd.models.saved import inputs_in_words
from inosgd.study.data import load_data
from inosgd.study.encoding import encoding_from_json
from inosgd.study.reading import read_study
from tests.study.writers import OWNERS, write_study

FACTORY = """
import torch
from torch import nn


class TextAndNumbers(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.embedding, self.numbers = nn.Embedding(257, 4), nn.Linear(*inputs["numbers"], 4)
        self.head = nn.Linear(4 * inputs["note"][0] + 4, classes)

    def forward(self, parts):
        read = self.embedding(parts["note"]).flatten(1)
        return self.head(torch.cat([read, self.numbers(parts["numbers"])], 1).tanh())


def build(inputs, classes, *, seed):
    assert inputs == {"numbers": (3,), "note": (6,)}
    torch.manual_seed(seed)
    return TextAndNumbers(inputs, classes)
"""
FEATURES = (
    'age = [0, 120]\nsex = ["f", "m"]\ndose = [-3, 3]',
    'age = [0, 120]\nnote = { text = "bytes", max_length = 6 }\nsex = ["f", "m"]',
)
MODEL = ('"mlp"\narguments = { hidden = [4] }', '"patients:build"')
SHORT = ("steps = 12", "steps = 3")


def rows(count: int = 60) -> str:
    lines = [f"{20 + n},{'bad' if n % 2 else 'quite good'},{'fm'[n % 2]},{n % 2},{OWNERS[n % 3]}" for n in range(count)]
    return "\n".join(["age,note,sex,ill,owner", *lines]) + "\n"


@pytest.fixture
def study(tmp_path):
    (tmp_path / "patients.py").write_text(FACTORY)
    return write_study(tmp_path, FEATURES, MODEL, SHORT, data=rows())


def test_it_trains_and_predicts(inosgd, tmp_path, study):
    outcome = inosgd("train", study, "--out", "run", "--allow-factory", "patients:build", "--json", "--no-report")
    assert outcome.code == 0, outcome.err
    described = json.loads((tmp_path / "run/model/model.json").read_text())
    assert described["architecture"]["inputs"] == {"numbers": [3], "note": [6]}
    assert "build({'numbers': (3,), 'note': (6,)}, 2, seed=0)" in described["torch_code"]
    words = inputs_in_words(described["inputs"])
    assert words.startswith("A dictionary of tensors")
    assert "'note' of text" in words
    assert "| age | numeric |" in words
    (tmp_path / "new.csv").write_text("note,sex,age\ngood,f,30\n,m,40\n")
    predicted = inosgd("predict", "run/model", "new.csv", "--allow-factory", "patients:build")
    assert len(predicted.out.splitlines()) == 3, predicted.err


def test_the_dictionary_is_that_of_disk_and_memory(tmp_path, study):
    one = load_data(read_study(study, allowed_factory="patients:build"))
    table = pyarrow.csv.read_csv(tmp_path / "cases.csv")
    pyarrow.parquet.write_table(table, tmp_path / "cases.parquet", row_group_size=7)
    text = study.read_text().replace('"cases.csv"', '"cases.parquet"\non_disk = true')
    study.write_text(text)
    other = load_data(read_study(study, allowed_factory="patients:build"))
    everything = np.arange(len(one.examples))
    first, second = one.examples.take(everything), other.examples.take(everything)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert first[0]["note"].dtype == torch.int64
    assert first[0]["numbers"].dtype == torch.float32
    assert encoding_from_json(one.encoding.to_json()) == one.encoding
    both = one.examples.followed_by(one.examples)
    torch.testing.assert_close(both.inputs[len(everything) :], first[0])


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_built_in_models_point_to_a_factory(inosgd, tmp_path, study, name):
    study.write_text(study.read_text().replace("patients:build", name))
    refused = inosgd("train", study, "--out", "run")
    assert refused.code == 2
    assert "text beside other columns is read by a model of your own" in refused.err


def test_a_text_column_must_not_take_the_name_of_the_numbers(inosgd, tmp_path, study):
    study.write_text(study.read_text().replace("note =", "numbers ="))
    refused = inosgd("train", study, "--out", "run", "--allow-factory", "patients:build")
    assert "data.features.numbers" in refused.err
    assert "rename the column of text" in refused.err
