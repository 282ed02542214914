"""``inosgd report`` from the outside, and reports at the end of other commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from inosgd.cli.report import report_at_end
from tests.report.materials import write_comparison

COMPARE = ("compare", "--steps", 4, "--seeds", 1, "--methods", "ino-sgd", "--set", "accountant=rdp")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_comparison(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_compare_ends_in_a_report(inosgd, tmp_path):
    outcome = inosgd("compare", "breast-cancer", *COMPARE[1:], "--condition", "--out", "run")
    assert "Report: run/report.html" in outcome.out
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Can the loss of the strictest owner fall?" in text
    assert "Importance weights by owner" in text
    assert set(json.loads((tmp_path / "run" / "weights.json").read_text())) == {"ino-sgd"}


def test_compare_without_a_report(inosgd, tmp_path):
    assert inosgd(*COMPARE, "--out", "run", "--no-report").code == 0
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"data.key", "results.jsonl", "summary.json"}


def test_a_report_that_fails_takes_nothing_with_it(folder, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "altair", None)
    assert report_at_end(folder) is None
    assert "no report: altair is not installed: pip install 'inosgd[report]'" in capsys.readouterr().err.replace(
        "\n", " "
    )
    assert not (folder / "report.html").exists()


def test_where_the_page_goes(inosgd, folder, tmp_path):
    assert "Report: run/report.html" in inosgd("report", "run").out
    assert "Report: elsewhere.html" in inosgd("report", "run", "-o", "elsewhere.html").out
    assert (tmp_path / "elsewhere.html").read_text() == (folder / "report.html").read_text()


def test_figures_without_a_page(inosgd, folder, tmp_path):
    outcome = inosgd("report", "run", "--figures", "figures", "--formats", "svg,png", "--charts", "pareto,terms")
    assert "Figures: 4 in figures" in outcome.out
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"pareto.svg", "pareto.png", "terms.svg", "terms.png"}
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing-here",), "give a folder of inosgd compare or train"),
        (("run", "run"), "with several runs say where the page goes"),
        (("run", "--figures", "f", "--formats", "gif"), "'gif' is not one of svg, png, pdf"),
        (("run", "--row", "sgd"), "'sgd' is not one of idp-sgd; ino-sgd"),
    ],
)
def test_requests_that_cannot_be_met(inosgd, folder, tmp_path, arguments, words):
    outcome = inosgd("report", *arguments)
    assert outcome.code == 2
    assert words in outcome.err.replace("\n", " ")
    assert not (tmp_path / "f").exists()
