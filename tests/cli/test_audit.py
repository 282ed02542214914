"""`inosgd audit`, as its users run it."""

from __future__ import annotations

import json

import pytest

LIRA = ("audit", "lira", "breast-cancer", "--models", 16, "--steps", 5, "--jobs", 1)
CANARY = ("audit", "canary", "breast-cancer", "--runs", 12, "--canaries", 200, "--steps", 5, "--jobs", 1)


def test_lira_shows_every_owner_and_what_is_possible(inosgd, tmp_path):
    ended = inosgd(*LIRA, "--out", "a")
    assert ended.code == 0
    for said in (
        "malignant",
        "benign",
        "most",
        "Bonferroni over 4",
        "Nothing is refuted at 95%",
        "not private",
    ):
        assert said in ended.out
    assert "<polyline" in (tmp_path / "a" / "roc.svg").read_text()


def test_lira_continues_where_it_stopped(inosgd, tmp_path):
    assert inosgd(*LIRA, "--out", "a").code == 0
    kept = sorted((tmp_path / "a").glob("shadow-*.npz"))
    assert len(kept) == 16
    times = {file: file.stat().st_mtime_ns for file in kept[:10]}
    before = json.loads((tmp_path / "a" / "summary.json").read_text())
    for file in kept[10:]:
        file.unlink()
    ended = inosgd(*LIRA, "--out", "a", "--json")
    assert {file: file.stat().st_mtime_ns for file in kept[:10]} == times
    again = json.loads(ended.out)
    for form in ("online", "offline"):
        for old, new in zip(before["owners"][form], again["owners"][form], strict=True):
            assert new["auc"] == pytest.approx(old["auc"], abs=1e-3)


def test_canary_shows_bounds_beside_what_is_accounted(inosgd):
    ended = inosgd(*CANARY)
    assert ended.code == 0
    for said in ("one-run black-box", "order", "spent", "Bonferroni over 16", "Nothing is refuted", "not private"):
        assert said in ended.out
    again = inosgd(*CANARY, "--json")
    report = json.loads(again.out)
    assert len(report["findings"]) == 10
    assert all(each["lower_bound"] <= each["accounted"] for each in report["findings"])


def test_a_control_says_what_it_is_and_is_caught(inosgd):
    ended = inosgd(
        *(*CANARY, "--steps", 20, "--runs", 48, "--method", "idp-sgd", "--control", "no-noise", "--confidence", "0.9")
    )
    assert "control: no noise is added" in ended.out
    assert "REJECTED at 90% confidence" in ended.out
    assert "Audits that catch it: canary white-box" in ended.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit", "lira", "nothing"), "study='nothing': choose one of digits"),
        (("audit", "lira", "digits", "--models", 2), "models=2"),
        (("audit", "lira", "digits", "--form", "up"), "form='up'"),
        (("audit", "lira", "digits", "--method", "up"), "method='up'"),
        (("audit", "canary", "digits", "--variant", "up"), "variant='up'"),
        (("audit", "canary", "digits", "--control", "up"), "control='up'"),
        (("audit", "canary", "digits", "--confidence", 1.5), "confidence=1.5"),
        (("audit", "canary", "digits", "--runs", 2), "runs=2"),
    ],
)
def test_refusals_leave_nothing_behind(inosgd, tmp_path, arguments, said):
    ended = inosgd(*arguments)
    assert ended.code == 2
    assert said in ended.err
    assert not list(tmp_path.iterdir())
