"""The planning benchmark measures what it says; how fast is for its table, not for a test."""

from __future__ import annotations

from inosgd.bench.plan import CASES, bench_plan, format_markdown, to_json


def test_one_case(dp_accounting_is_asked):
    (timing,) = timings = bench_plan([CASES[1]])
    assert (timing.name, timing.variant, timing.accountant) == ("10 owners", "scale", "pld")
    assert timing.seconds > 0
    assert 0 <= timing.largest_slack < 0.006
    assert "| 10 owners | scale | pld |" in format_markdown(timings)
    assert to_json(timings)[0]["at_most"] == 2.0


def test_every_case_has_a_limit():
    assert {case.name for case in CASES} == {"10 owners", "50,000 budgets", "1,000,000 owners"}
    assert all(case.at_most > 0 for case in CASES)
