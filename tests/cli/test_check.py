"""``inosgd check``: nothing is written, problems are errors, weaknesses are listed."""

from __future__ import annotations

import json


def test_a_new_study_is_ready_and_nothing_is_written(inosgd, tmp_path):
    inosgd("new", "study.toml")
    before = sorted(tmp_path.iterdir())
    said = inosgd("check", "study.toml")
    assert said.code == 0
    assert "Nothing would stop this training" in said.out
    assert "[shares.owners]" in said.out
    found = json.loads(inosgd("check", "study.toml", "--json").out)
    assert [each["kind"] for each in found["findings"]] == ["no-shares"]
    assert sorted(tmp_path.iterdir()) == before


def test_all_problems_of_a_table_are_one_error(inosgd, tmp_path):
    inosgd("new", "study.toml")
    table = tmp_path / "study-data.csv"
    lines = [line.split(",") for line in table.read_text().splitlines()]
    numbers = [column for column, name in enumerate(lines[0]) if name.startswith("mean ")]
    lines[1][numbers[0]], lines[2][numbers[1]] = "x", "y"
    table.write_text("\n".join(",".join(line) for line in lines))
    failed = inosgd("check", "study.toml")
    assert failed.code == 2
    assert "study.toml: 2 problems" in failed.err
    assert "'x'" in failed.err
    assert "'y'" in failed.err


def test_several_rows_of_a_person_are_said_before_anything_is_trained(inosgd, tmp_path):
    inosgd("new", "study.toml")
    table = tmp_path / "study-data.csv"
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"patient_id,{head}", *(f"p{row // 3},{line}" for row, line in enumerate(rows))]))
    found = json.loads(inosgd("check", "study.toml", "--json").out)["findings"]
    assert [each["kind"] for each in found] == ["repeated-ids", "no-shares", "unsaid"]
