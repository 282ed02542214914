"""``inosgd plan`` from the outside."""

from __future__ import annotations

import json

import pytest

from inosgd import Plan

ONE = ("--epsilon", "1", "--sizes", "30", "--batch", "5")
MNIST = ("plan", "--epsilon", "0.1,1", "--sizes", "30596,29404", "--batch", 512)


def test_json_for_machines(inosgd, tmp_path, dp_accounting_is_asked):
    outcome = inosgd(*MNIST, "--steps", 200, "--json", "--show", "profile", "--out", "plan.json")
    plan = json.loads(outcome.out)
    assert plan["accountant"] == "pld"
    assert plan["expected_batch_size"] == pytest.approx(512, rel=1e-3)
    strict, liberal = plan["owners"]
    assert (strict["epsilon"], strict["delta"], strict["size"]) == (0.1, 1e-5, 30596)
    assert 0 < strict["spent"] <= 0.1
    assert strict["spent"] + strict["unspent"] == pytest.approx(0.1)
    assert 1 <= liberal["signal"] / strict["signal"] <= 2 * 29404 / 30596 * 1.001
    assert strict["group"]["10"] > strict["group"]["1"]
    assert strict["profile"]["advantage"] <= 1.01 * strict["gaussian_profile"]["advantage"]
    written = Plan.from_json((tmp_path / "plan.json").read_text())
    assert written.at(0).noise_scale == plan["noise_scale"]


def test_a_table_for_people(inosgd):
    outcome = inosgd(*MNIST, "--steps", 200)
    assert outcome.code == 0
    for words in ("fair plan, 200 steps", "30596", "of 10", "° apart", "times per example"):
        assert words in " ".join(outcome.out.split())


def test_many_owners_show_the_strictest_median_and_most_liberal(inosgd, tmp_path):
    rows = [f"clinic {i},{0.5 + i / 10},,{100 + i}" for i in range(40)]
    (tmp_path / "owners.csv").write_text("owner,epsilon,delta,size\n" + "\n".join(rows))
    outcome = inosgd("plan", "--owners", "owners.csv", "--batch", 200, "--steps", 50, "--variant", "scale")
    assert "clinic 0 " in outcome.out
    assert "clinic 20" in outcome.out
    assert "clinic 39" in outcome.out
    assert "clinic 7 " not in outcome.out
    assert "Of 40 owners" in outcome.out


def test_variants_side_by_side(inosgd):
    compared = json.loads(inosgd(*MNIST, "--steps", 50, "--show", "variants", "--json").out)["variants"]
    assert set(compared) == {"uniform", "sample", "scale", "both", "fair", "threshold"}
    assert compared["uniform"]["signal_ratio"] < compared["fair"]["signal_ratio"] < compared["scale"]["signal_ratio"]
    assert "most liberal" in inosgd(*MNIST, "--steps", 50, "--show", "variants").out


def test_the_papers_figure_of_imbalanced_rates_and_thresholds(inosgd):
    curve = json.loads(
        inosgd("plan", "--show", "curves", "--epsilon", "0.5,0.6,3,8", "--set", "accountant=rdp", "--json").out
    )
    assert curve["rate_by_noise_scale"]["4"][3] == pytest.approx(0.1934, rel=1e-3)
    assert curve["rate_by_noise_scale"]["4"][1] == pytest.approx(0.01892, rel=1e-3)
    assert curve["threshold_by_rate"]["0.05"][0] == pytest.approx(0.3278, rel=1e-3)
    assert curve["threshold_by_rate"]["0.02"][2] == pytest.approx(3.2887, rel=1e-3)
    assert "Sampling rate by budget" in inosgd("plan", "--show", "curves", "--epsilon", "1,2", "--steps", 50).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epsilon", "0.1,1", "--sizes", "30,40", "--batch", 512), "70 examples in all"),
        (("--epsilon", "0.1,1", "--sizes", "30", "--batch", 5), "2 budgets need as many sizes"),
        (("--epsilon", "0.1,one", "--sizes", "30,40", "--batch", 5), "epsilon='0.1,one'"),
        (("--epsilon", "nan,1", "--sizes", "30,40", "--batch", 5), "epsilon[0]=nan"),
        (("--epsilon", "0.1,1", "--sizes", "30,-4", "--batch", 5), "size[1]=-4"),
        (("--batch", 5), "give --owners FILE"),
        (("--epsilon", "1", "--sizes", "30"), "--batch: give the expected batch size"),
        (("--epsilon", "1", "--sizes", "30", "--variant", "sample", "--noise-scale", "1e-9"), "owner 'owner 1'"),
        (("--epsilon", "1", "--sizes", "30", "--batch", "5", "--delta", "1"), "delta[0]=1.0"),
        (("--owners", "missing.csv", "--batch", 5), "missing.csv"),
        (("--epsilon", "1", "--sizes", "99999999999999999999", "--batch", "5"), "below 1e15"),
        (("--epsilon", "1", "--sizes", "30", "--batch", "5", "--out", "no/such/plan.json"), "no folder 'no/such'"),
        ((*ONE, "--show", "variants", "--out", "p.json"), "makes no plan to write"),
        ((*ONE, "--show", "everything"), "show='everything': choose one of plan, profile"),
        ((*ONE, "--set", "fairness=2"), "choose a key of accountant, profile_margin, fairness.exponent"),
        ((*ONE, "--set", "fairness.mix"), "write KEY=VALUE"),
        ((*ONE, "--set", "fairness.mix=lots"), "fairness.mix='lots': give a number"),
        ((*ONE, "--set", "fairness.exponent=-1"), "exponent=-1"),
    ],
)
def test_bad_requests_end_in_one_error(inosgd, tmp_path, arguments, words):
    outcome = inosgd("plan", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column 'owner'"),
        ("owner,epsilon,delta,size\n", "no owner"),
        ("owner,epsilon,size\na,1,10\na,2,10\n", "'a': appears twice"),
        ("owner,epsilon,size\na,lots,10\n", "line 2: epsilon='lots' is not a number"),
        ("owner,epsilon,size\na,nan,10\n", "line 2: epsilon='nan'"),
        ("owner,epsilon,size\na,1,-10\n", "line 2: size='-10'"),
        ("owner,epsilon,size\na,1,²\n", "line 2: size='²'"),
        ("owner,epsilon,size\n,1,10\n", "line 2: column 'owner' is empty"),
        ("owner,epsilon,size\na,1\n", "line 2: column 'size' is empty"),
        ("owner,epsilon,delta,size\na,1,2,10\n", "delta[0]=2.0"),
        (b"owner,epsilon,size\n\xff\xfe,1,10\n", "cannot be read as UTF-8"),
    ],
)
def test_bad_tables_are_refused_by_file_line_and_column(inosgd, tmp_path, text, words):
    path = tmp_path / "owners.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    outcome = inosgd("plan", "--owners", "owners.csv", "--batch", 5)
    assert outcome.code == 2
    assert words in outcome.err


def test_a_plan_is_never_overwritten(inosgd, tmp_path):
    (tmp_path / "plan.json").write_text("kept")
    outcome = inosgd(*MNIST, "--out", "plan.json")
    assert outcome.code == 2
    assert (tmp_path / "plan.json").read_text() == "kept"


def test_an_epsilon_that_nothing_certifies_is_null_in_json():
    from inosgd.cli.plan import _without_infinity

    assert _without_infinity({"group": {"all": float("inf")}, "owners": [1.5, float("nan")]}) == {
        "group": {"all": None},
        "owners": [1.5, None],
    }


def test_many_exposures_have_groups_of_typical_owners_only(inosgd, tmp_path, monkeypatch):
    """The numbers that are there are those of all owners; what is left out is said."""
    lines = [f"o{row},{0.5 + row / 10},{20 + row}" for row in range(15)]
    (tmp_path / "owners.csv").write_text("owner,epsilon,size\n" + "\n".join(lines) + "\n")
    command = ("plan", "--owners", "owners.csv", "--batch", 20, "--steps", 10, "--json")
    all_of_them = json.loads(inosgd(*command).out)
    monkeypatch.setattr("inosgd.analysis.plans.MOST_EXPOSURES", 5)
    some = json.loads(inosgd(*command).out)
    assert all_of_them["groups_of"] == "all owners shown"
    assert "median" in some["groups_of"]
    shown = [row for row in some["owners"] if "group" in row]
    assert [row["name"] for row in shown] == ["o0", "o7", "o14"]
    for row, whole in zip(some["owners"], all_of_them["owners"], strict=True):
        assert row == {key: value for key, value in whole.items() if key in row}
        assert "group" in whole
        assert set(whole) - set(row) <= {"group"}


def test_owners_may_be_separated_by_semicolons(inosgd, tmp_path):
    (tmp_path / "owners.csv").write_text("owner;epsilon;size\na;1;100\nb;2;100\n")
    found = inosgd("plan", "--owners", "owners.csv", "--batch", 20, "--steps", 10, "--json")
    assert found.code == 0, found.err
    assert [row["name"] for row in json.loads(found.out)["owners"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", 20, "--steps", 0], "error: --steps=0: give a whole number"),
        (["--batch", 1000], "error: --batch=1000: the owners have 200 examples"),
        ([], "--batch: give the expected batch size"),
        (["--batch", 20, "--delta", 0.5], "or --allow-large-deltas if this is meant"),
        (["--batch", 20, "--variant", "x"], "error: --variant='x': choose one of"),
    ],
)
def test_errors_name_flags(inosgd, options, words):
    assert words in inosgd("plan", "--epsilon", "1,2", "--sizes", "100,100", *options).err
