from __future__ import annotations

import json

import numpy as np
import pytest

from inosgd.audit.store import AuditFolder, confidences_of, shadow_name
from inosgd.errors import InvalidArgumentError


def test_what_is_kept_is_there_again_and_only_for_its_user(tmp_path):
    folder = AuditFolder(tmp_path / "audit", {"of": "a test"})
    folder.keep(shadow_name(3), confidences=np.arange(3.0))
    again = AuditFolder(tmp_path / "audit", {"of": "a test"})
    assert again.has(shadow_name(3))
    assert not again.has(shadow_name(4))
    assert confidences_of(again, [3]).tolist() == [[0.0, 1.0, 2.0]]
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (tmp_path / "audit").iterdir())
    assert "not private" in (tmp_path / "audit" / "NOT-PRIVATE.txt").read_text()


def test_other_settings_and_other_folders_are_refused(tmp_path):
    AuditFolder(tmp_path / "audit", {"seed": 0})
    with pytest.raises(InvalidArgumentError, match="other settings"):
        AuditFolder(tmp_path / "audit", {"seed": 1})
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(InvalidArgumentError, match="not empty and not an audit"):
        AuditFolder(tmp_path / "else", {"seed": 0})


def test_a_folder_whose_creation_was_interrupted_is_taken_up(tmp_path):
    folder = tmp_path / "audit"
    folder.mkdir()
    (folder / ".configuration.json.partial").write_text("{")
    AuditFolder(folder, {"seed": 0})
    (folder / "NOT-PRIVATE.txt").unlink()
    AuditFolder(folder, {"seed": 0})
    assert (folder / "NOT-PRIVATE.txt").exists()


def test_nothing_in_a_file_is_executed(tmp_path):
    folder = AuditFolder(tmp_path / "audit", json.loads("{}"))
    np.savez(folder.path / "evil.npz", confidences=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        folder.kept("evil")
