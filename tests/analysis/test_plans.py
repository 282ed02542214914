"""Plans in words."""

from __future__ import annotations

from dataclasses import replace

from inosgd.analysis.plans import gains_by_more
from inosgd.owners import OwnerTable
from inosgd.plan_config import PlanConfig
from inosgd.planning import make_plan


def test_who_would_gain_by_allowing_more_is_said():
    table = OwnerTable(("strict", "liberal"), [0.5, 8.0], [1e-5] * 2, [3000, 2000])
    config = PlanConfig(steps=50, variant="fair", expected_batch_size=128, clipping_threshold=1.0)
    capped = gains_by_more(make_plan(table, config, verify=False))
    assert capped.startswith("liberal would gain nothing by allowing more: of ε 8 the plan uses")
    assert "What strict allows is used" in capped
    used = gains_by_more(make_plan(table, replace(config, variant="scale"), verify=False))
    assert used == "Every owner's budget is used: an owner that allows more has a larger signal."
