"""Material: what a report is made from, whichever command it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inosgd.analysis.answers import Answer
from inosgd.analysis.findings import Finding
from inosgd.analysis.score import SCORES, Score
from inosgd.analysis.suggestions import Suggestion
from inosgd.compare.results import Result
from inosgd.compare.views import Rows
from inosgd.errors import InvalidArgumentError
from inosgd.owners import EXAMPLE

MOST_MAIN_ROWS = 6
"""With more rows than this, some are drawn everywhere and the others only as points of the Pareto chart."""

PAPER_METHODS = ("dp-sgd", "idp-sgd", "ino-sgd")


@dataclass(frozen=True)
class OwnerFacts:
    """An owner, or a kind of data with the budget of those who hold it."""

    name: str
    epsilon: float
    delta: float | None = None
    examples: int | None = None


@dataclass(frozen=True, eq=False)
class MethodRow:
    """A method with its plan: one result per seed, and what it spent of each owner's budget.

    Attributes:
        label: What it is called on the page; no two rows have the same.
        variant: How it plans.
        results: By seed; empty if nothing was evaluated.
        spent: The largest epsilon over seeds that each owner has spent; empty if it is not known owner by owner.
        terms: Rates, thresholds and signals of the owners, by name of the quantity.
    """

    label: str
    variant: str
    results: tuple[Result, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that it was trained with."""
        return tuple(result.seed for result in self.results)


@dataclass(frozen=True, eq=False)
class Material:
    """Everything that a page shows.

    Attributes:
        kind: The command that trained: ``compare`` or ``train``.
        title: What the study is called.
        description: One sentence on who owns what.
        owners: In the order of their budgets, the strictest first.
        rows: Methods and plans; the first ``main`` ones are drawn everywhere.
        main: The labels of the rows that all charts show.
        facts: Names and values of what else there is to know: steps, batch, accountant.
        verdict: One sentence.
        classes: The name of each class, and whose it is where that is known.
        condition: The condition of Thm. 3.1, by row, as `inosgd.compare.conditions` gives it.
        weights: Mean importance weights, by row.
        roc: Curves of a membership audit, by row and owner.
        unaccounted: What voids or weakens the promise for this very run; the gravest first.
        findings: What to know before looking at anything else; the gravest first.
        unit: What each budget protects.
        answers: To what is asked first.
        suggestions: What to try next.
    """

    kind: str
    title: str
    description: str
    owners: tuple[OwnerFacts, ...]
    rows: tuple[MethodRow, ...]
    main: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    verdict: str = ""
    classes: tuple[tuple[str, str | None], ...] = ()
    condition: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    roc: Mapping[str, Any] = field(default_factory=dict)
    unaccounted: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    unit: str = EXAMPLE
    answers: tuple[Answer, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def score(self) -> Score:
        """The score that owners are compared in."""
        found = next((results[0].final.scoring for results in self.evaluated.values()), None)
        return found or SCORES["accuracy"]

    @property
    def main_rows(self) -> tuple[MethodRow, ...]:
        """The rows that all charts show, in the order of ``main``."""
        by_label = {row.label: row for row in self.rows}
        return tuple(by_label[label] for label in self.main)

    @property
    def evaluated(self) -> Rows:
        """The results of all rows that have any."""
        return {row.label: row.results for row in self.rows if row.results}

    @property
    def evaluated_main(self) -> Rows:
        """The results of the main rows that have any."""
        return {row.label: row.results for row in self.main_rows if row.results}

    @property
    def seeds(self) -> int:
        """The largest number of seeds of any main row."""
        return max((len(row.results) for row in self.main_rows), default=0)


def by_budget(owners: Sequence[OwnerFacts]) -> tuple[OwnerFacts, ...]:
    """The strictest first; owners with equal budgets stay in their order."""
    return tuple(sorted(owners, key=lambda owner: owner.epsilon))


def main_labels(rows: Sequence[MethodRow], wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """The rows that all charts show: those asked for, or all, or the paper's methods and the first plans after them."""
    labels = [row.label for row in rows]
    if wanted is not None:
        for label in wanted:
            if label not in labels:
                raise InvalidArgumentError(f"rows: {label!r} is not one of {'; '.join(labels)}")
        return tuple(dict.fromkeys(wanted))
    if len(rows) <= MOST_MAIN_ROWS:
        return tuple(labels)
    known = [label for label in labels if _standing(label)[0] < 2]
    return tuple(sorted(known or labels, key=_standing)[:MOST_MAIN_ROWS])


def _standing(label: str) -> tuple[int, int]:
    """The paper's methods come first, then fair plans with default knobs, then everything else as it came."""
    if label in PAPER_METHODS:
        return 0, PAPER_METHODS.index(label)
    usual = ("idp-sgd fair 4, at most 2x", "ino-sgd fair 4, at most 2x", "ino-sgd-fair")
    return (1, usual.index(label)) if label in usual else (2, 0)
