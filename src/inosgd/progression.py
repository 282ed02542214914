"""Individualized privacy progression (App. A.3): owners change their minds while a model is trained.

An owner may raise its budget or lower it, join, or withdraw. `propose` says what follows, as a value that can be
shown; `carry_out` does it.

    continue    everybody still allows what was spent: a new plan for the remaining steps, with the past counted
    roll back   somebody allows less than was spent: back to the last checkpoint whose spending everybody allows,
                and a new plan from there
    stop        that checkpoint lies behind a release, or no plan exists for what is left

Guarantee:
    After `carry_out`, and after training by the new plan, what the steps that stand have cost every owner, all phases
    composed, is at most the owner's budget in force: by our accountant, by dp-accounting, and by the ledger, which
    judges every further step anew. Steps up to a release always stand.

What rolling back rests on: the steps that are given up were seen by nobody outside. Whoever lets a model out, or
figures computed from it, marks the release *before* (`RunFolder.mark_release`). After any change the random streams
are new, so that noise of a step that was given up never covers another sum.

What a change may depend on: budgets are public and are taken not to be chosen in view of what the model shows of
the data. Where they are, use the Rényi accountant: its sums remain bounds if later terms depend on earlier releases
(Feldman and Zrnic 2021), which is not known for privacy-loss distributions in general.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inosgd._arrays import ArrayValue, FloatArray
from inosgd.owners import Budget, OwnerTable
from inosgd.plan import Plan
from inosgd.planning import Fairness
from inosgd.records import Position
from inosgd.runs import RunFolder


@dataclass(frozen=True)
class Changes:
    """What owners ask for.

    Attributes:
        budgets: New budgets by owner; owners that are not in the ledger yet join.
        sizes: How many examples an owner has from now on: for each that joins, and for each whose number changes.
        withdrawn: Owners whose examples leave the training; what they have spent stays on record.
    """

    budgets: Mapping[str, Budget] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanSettings:
    """How to plan the remaining steps; None takes what the current plan has.

    Attributes:
        steps: The number of all steps, those already taken included.
        variant: One of `inosgd.planning.VARIANTS`.
        expected_batch_size: The mean of the batch size.
        clipping_threshold: The mean threshold over all records.
        fairness: The knobs of ``fair`` and ``both``.
        profile_margin: As in `inosgd.make_plan`.
        verify: Whether dp-accounting checks the plan too.
    """

    steps: int | None = None
    variant: str | None = None
    expected_batch_size: float | None = None
    clipping_threshold: float | None = None
    fairness: Fairness | None = None
    profile_margin: float | None = None
    verify: bool = True


@dataclass(frozen=True, eq=False)
class Proposal(ArrayValue):
    """What would be done, before it is done.

    Attributes:
        action: "continue", "roll back" or "stop".
        reason: Why, in a sentence.
        step: Where training goes on; for "stop" where it stands.
        recorded: How many steps stand in the ledger now.
        released: Up to which step the model has been released.
        table: Owners and budgets as they would be; withdrawn owners have no examples.
        plan: The plan from then on, the steps that stand included; None for "stop".
        spent: What each owner has spent now, in the rows of ``table``.
        kept: What each owner would have spent after the proposal, at ``step``.
        resting: Owners with examples and with nothing left to spend: they are not sampled any more.
        position: The end of the ledger when this was proposed.
    """

    action: str
    reason: str
    step: int
    recorded: int
    released: int
    table: OwnerTable
    plan: Plan | None
    spent: FloatArray
    kept: FloatArray
    resting: tuple[str, ...]
    position: Position


def propose(run: RunFolder, changes: Changes, settings: PlanSettings | None = None) -> Proposal:
    """What follows from ``changes``; nothing is changed, and no lock is needed."""
    raise NotImplementedError


def carry_out(run: RunFolder, proposal: Proposal) -> None:
    """Do what was proposed: write the plan and the ledger's record, remove what no longer stands. Needs the lock.

    The record in the ledger is the moment at which it happens; killed before it, nothing has, and killed after it,
    the rest is done by the next `inosgd.runs.resume`. For "stop", the ledger refuses further steps until a later
    proposal is carried out. To go on: build the training for ``run.plan()`` and resume.

    Raises:
        InvalidArgumentError: If the ledger has moved on since the proposal; propose again.
    """
    raise NotImplementedError
