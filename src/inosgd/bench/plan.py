"""How long planning takes, including verification by dp-accounting, on one core."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from inosgd.owners import OwnerTable
from inosgd.planning import PlanConfig, make_plan


@dataclass(frozen=True)
class PlanCase:
    """One planning problem, and the seconds it may take."""

    name: str
    variant: str
    accountant: str
    at_most: float


@dataclass(frozen=True)
class PlanTiming(PlanCase):
    """CPU seconds of one planning problem, and the largest share of a budget that solving left unspent."""

    seconds: float
    largest_slack: float


CASES = (
    *(PlanCase("10 owners", variant, "pld", 2.0) for variant in ("sample", "scale", "both", "fair")),
    *(PlanCase("50,000 budgets", variant, "rdp", 3.0) for variant in ("sample", "scale")),
    *(PlanCase("50,000 budgets", variant, "pld", 12.0) for variant in ("sample", "scale")),
    PlanCase("50,000 budgets", "fair", "pld", 30.0),
    *(PlanCase("1,000,000 owners", variant, "pld", 5.0) for variant in ("sample", "scale", "fair")),
)


def bench_plan(cases: Iterable[PlanCase] = CASES) -> list[PlanTiming]:
    """Plan each case once: 1,000 steps; an expected batch of 1,024, or of 16,384 for a million owners."""
    return [_timed(case) for case in cases]


def format_markdown(timings: Iterable[PlanTiming]) -> str:
    """A table for people."""
    lines = ["| owners | variant | accountant | CPU s | at most | largest slack |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {timing.name} | {timing.variant} | {timing.accountant} | {timing.seconds:.2f} | {timing.at_most:g} | "
        f"{100 * timing.largest_slack:.2f} % |"
        for timing in timings
    ]
    return "\n".join(lines)


def to_json(timings: Iterable[PlanTiming]) -> list[dict[str, float | str]]:
    """Plain numbers."""
    return [asdict(timing) for timing in timings]


def _timed(case: PlanCase) -> PlanTiming:
    table = _owners(case.name)
    start = time.process_time()
    plan = make_plan(
        table,
        PlanConfig(
            steps=1000,
            variant=case.variant,
            expected_batch_size=16_384 if len(table) == 1_000_000 else 1024,
            clipping_threshold=1.0,
            accountant=case.accountant,
        ),
    )
    seconds = time.process_time() - start
    slack = 1 - plan.spent / table.epsilons
    # A fair plan leaves budgets unspent on purpose; its slack is that of the strictest owner.
    largest = float(slack[np.argmin(table.epsilons)] if case.variant == "fair" else slack.max())
    return PlanTiming(**vars(case), seconds=seconds, largest_slack=largest)


def _owners(name: str) -> OwnerTable:
    rng = np.random.default_rng(0)
    if name == "10 owners":
        return _table(np.linspace(0.5, 5, 10), 5000)
    if name == "50,000 budgets":
        return _table(rng.uniform(0.25, 5.25, 50_000), 1)
    return _table(rng.choice(np.linspace(0.25, 5.25, 1000), 1_000_000), 1)


def _table(epsilons: np.typing.NDArray[np.float64], size: int) -> OwnerTable:
    count = len(epsilons)
    names = tuple(str(owner) for owner in range(count))
    return OwnerTable(names, epsilons, np.full(count, 1e-5), np.full(count, size))
