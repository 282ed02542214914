"""What stands beside a run is used as it is, or refused with the file's name."""

from __future__ import annotations

import json

import pytest

from inosgd.errors import InvalidArgumentError
from inosgd.report.extras import read_extras

CURVE = {"false_positive_rates": [0.0, 1.0], "true_positive_rates": [0.0, 1.0], "area": 0.5}


def _read(folder, fields):
    (folder / "audit.json").write_text(json.dumps(fields))
    return read_extras(folder, ["ino-sgd"])


def test_curves_of_rows_that_are_there(tmp_path):
    assert _read(tmp_path, {"ino-sgd": {"a": CURVE}, "another": {"a": CURVE}}) == {"roc": {"ino-sgd": {"a": CURVE}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"ino-sgd": 3},
        {"ino-sgd": {"a": None}},
        {"ino-sgd": {"a": {"false_positive_rates": [0.0, 1.0]}}},
        {"ino-sgd": {"a": {**CURVE, "true_positive_rates": [0.0]}}},
        {"ino-sgd": {"a": {**CURVE, "true_positive_rates": [0.0, "1"]}}},
        {"ino-sgd": {"a": {**CURVE, "true_positive_rates": [0.0, float("nan")]}}},
        {"ino-sgd": {"a": {**CURVE, "area": 7}}},
    ],
)
def test_curves_that_cannot_be_drawn(tmp_path, fields):
    with pytest.raises(InvalidArgumentError, match=r"audit\.json: 'ino-sgd'"):
        _read(tmp_path, fields)
