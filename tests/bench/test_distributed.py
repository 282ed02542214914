"""The benchmark of many processes counts what it says; how fast is for its table, not for a test."""

from __future__ import annotations

import pytest

from inosgd.bench.distributed import MACHINES, bench_distributed, format_markdown, measure, project
from inosgd.bench.models import MODELS
from inosgd.distributed import Peers
from inosgd.errors import InvalidArgumentError
from tests.processes import crew_of


def measured(peers: Peers, steps: int) -> dict | None:
    return measure("mlp", "", peers.rank, peers.size, steps)


def test_a_step_on_one_and_on_two_processes():
    alone = measure("mlp", "", 0, 1, 2)
    with crew_of(2) as two:
        first, second = two.run(measured, 2)
    assert second is None
    assert alone["step"] > 0
    assert alone["bytes"] == alone["communication"] == 0
    parameters = sum(each.numel() for each in MODELS["mlp"].make()[0].parameters())
    assert alone["gradient"] == first["gradient"] == 8 * parameters
    assert first["gradient"] < first["bytes"] <= first["gradient"] + 24 * 2 * MODELS["mlp"].batch_size
    assert first["communication"] > 0
    assert first["waiting"] >= 0
    assert min(first["link"]) > 0


def test_a_projection_grows_with_the_machines_as_it_says():
    alone = {"batch": 100.0, "gradient": 1e6, "step": 0.5}
    rows = [project(alone, machines, (1e-4, 1e9)) for machines in MACHINES]
    assert rows[0]["communication"] == pytest.approx(5 * 7e-4 + 7 * 1600 / 1e9 + 2 * 7 / 8 * 1e-3)
    assert [row["batch"] for row in rows] == [800.0, 6400.0, 51200.0]
    assert 1 > rows[0]["efficiency"] > rows[1]["efficiency"] > rows[2]["efficiency"]
    assert project(alone, 1, (1e-4, 1e9))["communication"] == 0
    one = {**alone, "processes": 1, "communication": 0.0, "waiting": 0.0, "bytes": 0}
    result = {
        "cores": 2,
        "torch": "x",
        "steps": 3,
        "networks": {"mlp": [one]},
        "link": None,
        "projection": {"mlp": rows},
    }
    shown = format_markdown(result)
    assert "| mlp | 1 | 500.0 | - | - | 0 |" in shown
    assert "Projection, not measured" in shown
    assert "| mlp | 512 | 51,200 |" in shown


def test_unknown_networks_are_refused():
    with pytest.raises(InvalidArgumentError, match="networks='vgg'"):
        bench_distributed(["vgg"])
