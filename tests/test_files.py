"""Files are private, whole, and know when they were changed."""

from __future__ import annotations

import json
import stat

import pytest

from inosgd.files import read_json, write_json, write_private


def test_a_file_is_replaced_at_once_and_private(tmp_path):
    path = tmp_path / "a"
    write_private(path, b"one")
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_json_comes_back_and_any_change_is_found(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": [1, 2.5, None], "y": "z"})
    assert read_json(path) == {"x": [1, 2.5, None], "y": "z"}
    content = json.loads(path.read_text())
    content["fields"]["x"][0] = 2
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="does not match its digest"):
        read_json(path)
