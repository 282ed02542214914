"""The page of evidence: from trainings to verdicts."""

from __future__ import annotations

from functools import partial

import pytest

from inosgd.paper import evidence as evidence_module
from inosgd.paper.claims import CLAIMS, Check, checks_of, fair_against_paper, shown, verdict
from inosgd.paper.datasets import ASSIGNMENTS, synthetic
from inosgd.paper.evidence import ABLATIONS, EVIDENCE, Evidence, collect, experiment_rows
from inosgd.paper.evidence_report import render
from inosgd.paper.registry import SETTINGS, study_of
from inosgd.parallel.workers import Workers
from inosgd.planning import Fairness


@pytest.fixture(scope="module", autouse=True)
def made_up():
    def study_named(name, scale, _):
        study = study_of(name, scale, partial(synthetic, ASSIGNMENTS["CF"], "fish-vehicles-embeddings"))
        return study.changed({"steps": 4, "expected_batch_size": 20.0})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evidence_module, "study_named", study_named)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What one test has trained, the other finds there."""
    return tmp_path_factory.mktemp("evidence")


SMALL = Evidence("CF-EN", 2, (1.0, 4.0), (2.0,), (Fairness(),), ("order",))


def test_from_trainings_to_the_page(folder):
    found = list(collect(SMALL, folder, folder / "cache", workers=Workers(jobs=1)))
    assert found[0].learning_rate == 2.0
    assert found[-1].chosen
    assert set(found[0].tried) == {1.0, 4.0}
    assert found[-1].learning_rate == max(found[0].tried, key=found[0].tried.get)
    page = render(found)
    for words in ("# Evidence", "## Verdicts", "## CF-EN, learning rate 2", "(chosen)", "ascending-loss", "| 3/4 |"):
        assert words in page
    assert "Not trained yet: CR-EN, CA-MLP" in page
    for claim in CLAIMS:
        assert claim.text in page
    trained = sorted(path.name for path in (folder / "cache").iterdir())
    assert "CF-EN-pld-1-validation" in trained
    again = list(collect(SMALL, folder, folder / "cache", workers=Workers(jobs=1)))
    assert render(again) == page  # everything was there


def test_a_fair_plan_is_held_against_the_papers_method(folder):
    collected = next(iter(collect(SMALL, folder, folder / "cache", workers=Workers(jobs=1))))
    fair = collected.rows["fair"]["idp-sgd fair 4, at most 2x"]
    paper = collected.rows["sample"]["ino-sgd"]
    expected = sum(ours.final.worst - theirs.final.worst for ours, theirs in zip(fair, paper, strict=True)) / 2
    assert fair_against_paper(collected)["worst"].mean == pytest.approx(expected)
    order = next(claim for claim in CLAIMS if "order" in claim.text)
    assert [check.where for check in checks_of(order, [collected])] == ["CF-EN at 2"]


def test_verdicts_are_plain():
    good, bad = Check("here", True, ""), Check("there", False, "")
    assert verdict([]) == "not measured"
    assert verdict([good]) == "holds"
    assert verdict([bad]) == "does not hold"
    assert verdict([good, bad]) == "holds in part: in here; not in there"


def test_numbers_are_shown_with_their_p_value():
    assert shown({"mean": -0.0213, "p": None}) == "-2.1"
    assert shown({"mean": 0.1, "p": 1e-9}) == "+10.0 (p < .001)"


def test_what_the_evidence_covers():
    names = {evidence.name for evidence in EVIDENCE}
    assert names == {"MN-PC", "CF-PC", "CF-EN", "CR-EN", "CA-MLP", "SU-LS", "PN-EN", "CM-PC"}
    assert all(evidence.seeds >= 3 for evidence in EVIDENCE)
    rows = experiment_rows(EVIDENCE[0], SETTINGS["CF-EN"].variant, whole=True)
    assert set(rows) == {"sample", "scale", "fair", *ABLATIONS}
    beside = experiment_rows(EVIDENCE[0], "scale", whole=False)
    assert set(beside) == {"scale", "fair"}
    assert len(beside["fair"]) == 3
