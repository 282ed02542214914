"""`inosgd audit`, as its users run it."""

from __future__ import annotations

import json

import pytest

from inosgd.audit.controls import with_noise
from inosgd.audit.practice import honest
from inosgd.report import read_runs
from inosgd.report.tables import all_tables

LIRA = ("audit", "lira", "breast-cancer", "--models", 16, "--steps", 3, "--jobs", 1)
CANARY = ("audit", "canary", "breast-cancer", "--runs", 12, "--canaries", 200, "--steps", 5, "--jobs", 1)
COMPARE = (
    "compare",
    "breast-cancer",
    "--steps",
    4,
    "--seeds",
    1,
    "--methods",
    "ino-sgd",
    "--no-report",
    "--jobs",
    1,
)


def test_lira_from_its_beginning_to_a_report(inosgd, tmp_path):
    """Trained, shown, interrupted and continued, put into a run, and drawn into the run's report."""
    ended = inosgd(*LIRA, "--out", "a")
    assert ended.code == 0
    for said in ("malignant", "benign", "most", "Bonferroni over 8", "Nothing is refuted at 95%", "not private"):
        assert said in ended.out
    for form in ("online", "offline"):
        assert "<polyline" in (tmp_path / "a" / f"roc-{form}.svg").read_text()
    before = json.loads((tmp_path / "a" / "summary.json").read_text())
    kept = sorted((tmp_path / "a").glob("shadow-*.npz"))
    times = {file: file.stat().st_mtime_ns for file in kept[:10]}
    for file in kept[10:]:
        file.unlink()

    assert inosgd(*COMPARE, "--out", "run").code == 0
    again = inosgd(*LIRA, "--out", "a", "--into", "run", "--json")
    assert len(kept) == 16
    assert {file: file.stat().st_mtime_ns for file in kept[:10]} == times
    report = json.loads(again.out)
    for form in ("online", "offline"):
        for old, new in zip(before["owners"][form], report["owners"][form], strict=True):
            assert new["auc"] == pytest.approx(old["auc"], abs=1e-3)

    written = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert written["ino-sgd"]["malignant"]["area"] == report["owners"]["online"][0]["auc"]
    assert (tmp_path / "run" / "audit.json").stat().st_mode & 0o777 == 0o600
    assert inosgd("report", "run").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Membership audit" in page
    curves = all_tables(read_runs([tmp_path / "run"]))["roc"]
    assert set(curves["owner"]) == {"malignant", "benign"}
    assert len(curves["owner"]) == sum(len(each["false_positive_rates"]) for each in written["ino-sgd"].values())

    wrong = inosgd(*LIRA, "--method", "idp-sgd", "--into", "run")
    assert wrong.code == 2
    assert "it is a run of breast-cancer by ino-sgd" in wrong.err

    described = tmp_path / "a" / "configuration.json"  # as a version that plans otherwise would find it
    described.write_text(described.read_text().replace('"plan": "', '"plan": "0'))
    stale = inosgd(*LIRA, "--out", "a")
    assert stale.code == 2
    assert "other settings" in stale.err


def test_canary_shows_bounds_beside_what_is_accounted(inosgd, tmp_path):
    ended = inosgd(*CANARY, "--out", "a")
    assert ended.code == 0
    for said in ("one-run black-box", "order", "spent", "Bonferroni over 16", "Nothing is refuted", "not private"):
        assert said in ended.out
    report = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert len(report["findings"]) == 10
    assert all(each["lower_bound"] <= each["accounted"] for each in report["findings"])


def test_a_control_says_what_it_is_and_is_caught(inosgd):
    """Without noise every canary that was ever drawn is known: some hundred of 750, all guesses right."""
    ended = inosgd(*CANARY, "--steps", 20, "--canaries", 1000, "--method", "idp-sgd", "--control", "no-noise")
    assert ended.code == 0
    assert "control: no noise is added" in ended.out
    assert "REJECTED at 95% confidence" in ended.out
    assert "Audits that catch it: canary white-box" in ended.out


def test_a_refuted_claim_ends_with_code_1(inosgd, monkeypatch):
    """As in continuous integration: training without noise, unknown to the command."""
    monkeypatch.setattr("inosgd.audit.audited.honest", lambda *given: with_noise(honest(*given), 0.0))
    ended = inosgd(*CANARY, "--steps", 20, "--canaries", 1000, "--method", "idp-sgd", "--json")
    assert ended.code == 1
    assert json.loads(ended.out)["rejected"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit", "lira", "nothing"), "STUDY='nothing': there is no such study file, nor a study of that name"),
        (("audit", "lira", "digits", "--models", 15), "models=15"),
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
