"""Individualized privacy progression (App. A.3): owners change their budgets while a model is trained.

An owner may raise its budget or lower it, join, or withdraw. `propose` says what follows, as a value that can be
shown; `carry_out` does it.

    continue    all owners still allow what was spent: a new plan for the remaining steps, with the past counted
    roll back   an owner allows less than was spent: back to the last checkpoint whose spending all owners allow,
                and a new plan from there
    stop        that checkpoint lies before the published model, or no plan exists for what is left

Guarantee:
    After `carry_out`, and after training by the new plan, what the steps that stand have cost every owner, all phases
    composed, is at most the owner's budget in force: by our accountant, by dp-accounting, and by the ledger, which
    judges every further step anew. The steps of a published model always stand.

What rolling back rests on: nothing of the steps that are given up was published. A model is marked as published
(`LockedRun.mark_published`) *before* it, or a figure computed from it, is given away. After any change the random
streams are new, so that noise of a step that was given up never covers another sum.

What a change may depend on: budgets are public and are taken not to be chosen in view of what the model shows of
the data. Where they are, let the training draw on an account (`inosgd.accounts`): its filter has one Rényi order,
fixed in advance, and holds for charges that depend on earlier releases (Feldman and Zrnic 2021). Neither accountant of
a ledger is such a filter. Privacy-loss distributions that are added up adaptively can exceed the budget (Regehr et
al. 2026, arXiv 2602.15815), and "rdp" takes the best of many orders at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd._arrays import ArrayValue, FloatArray, frozen_floats, frozen_integers
from inosgd.accounting import epsilons_spent
from inosgd.errors import CheckpointError, InfeasibleError, InvalidArgumentError, UnknownOwnerError
from inosgd.files import sha256
from inosgd.ledger.history import widened, widened_terms
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.records import Position
from inosgd.owners import EXAMPLE, Budget, OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.plan_config import PlanConfig
from inosgd.planning import Rooms, make_plan
from inosgd.runs.checkpoint import Checkpoint, read_checkpoint
from inosgd.runs.files import put
from inosgd.runs.folder import LockedRun, RunFolder
from inosgd.shown import rounded_up
from inosgd.units import parts_of

LEAST_LEFT = 1e-3
"""An owner with less than this share of its epsilon left rests: it could take part in next to nothing."""


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


@dataclass(frozen=True, eq=False)
class Proposal(ArrayValue):
    """What would be done, before it is done.

    Attributes:
        action: "continue", "roll back" or "stop".
        reason: Why, in a sentence.
        step: Where training goes on; for "stop" where it stands.
        recorded: How many steps stand in the ledger now.
        published: The number of steps of the published model.
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
    published: int
    table: OwnerTable
    plan: Plan | None
    spent: FloatArray
    kept: FloatArray
    resting: tuple[str, ...]
    position: Position


def propose(
    run: RunFolder,
    changes: Changes,
    config: PlanConfig | None = None,
    *,
    verify: bool = True,
    rooms: Callable[[OwnerTable], Rooms] | None = None,
) -> Proposal:
    """What follows from ``changes``; nothing is changed, and no lock is needed.

    A budget that stands unanswered, because training was stopped over it, is asked for again unless ``changes`` says
    otherwise. Steps that were recorded after the last checkpoint are given up: their outcome is lost.

    Args:
        run: What is being trained.
        changes: What owners ask for.
        config: How to plan the remaining steps; by default as ``run.plan()`` was asked for. ``steps`` counts all steps,
            those that stand included.
        verify: Whether dp-accounting checks the plan too.
        rooms: What accounts leave to the owners of a table for what is not taken yet; owners without room rest.

    Raises:
        InvalidArgumentError: If ``changes`` or ``config`` make no sense for this run.
        UnknownOwnerError: If an owner withdraws that the ledger does not have.
    """
    ledger = run.read_ledger()
    table = changed_table(ledger, changes)
    past = _Past(ledger, table)
    step = _last_allowed_step(run, past)
    if step < 0:
        return past.proposal("stop", "no checkpoint is whole whose spending all owners allow", ledger.steps)
    if step < ledger.published:
        return past.proposal("stop", _published_reason(past), ledger.steps)
    current = run.plan()
    config = config or current.config
    if config is None:
        raise InvalidArgumentError("config=None: the plan of the run was made by hand and holds none; give one")
    try:
        plan, resting = _plan_from(past, step, current, config, verify, None if rooms is None else rooms(table))
    except InfeasibleError as error:
        return past.proposal("stop", f"no plan exists for what is left: {error}", ledger.steps)
    action = "continue" if step == ledger.steps else "roll back"
    return past.proposal(action, _reason(past, step, plan), step, plan, resting)


def carry_out(
    run: LockedRun,
    proposal: Proposal,
    files: Mapping[str, bytes] | None = None,
    *,
    account: Mapping[str, Any] | None = None,
) -> None:
    """Do what was proposed: write the plan and the ledger's record, remove what no longer stands.

    The record in the ledger is the moment at which it happens; killed before it, nothing has, and killed after it,
    the rest is done by the next `inosgd.runs.resume`. For "stop", the ledger refuses further steps until a later
    proposal is carried out. To go on: build the training for ``run.plan()`` and resume.

    Args:
        run: The run that was looked at, locked.
        proposal: What `propose` returned for it.
        files: What else to write into the run folder before, by name; see `inosgd.runs.files.put`.
        account: For the ledger's record: which entry of which account book is answered.

    Raises:
        InvalidArgumentError: If the ledger has moved on since the proposal; propose again.
    """
    with closing(LockedRun.of(run).open_ledger()) as ledger:
        if ledger.position != proposal.position:
            raise InvalidArgumentError("proposal: the run has moved on since it was made; propose again")
        plan = {} if proposal.plan is None else run.next_plan(proposal.plan)
        put(run.path, ledger, {**(files or {}), **plan})
        if proposal.plan is None:
            ledger.mark_stop(proposal.reason, proposal.table, account=account)
        else:
            ledger.mark_change(proposal.step, proposal.table, *map(sha256, plan.values()), account=account)
    if proposal.plan is not None:
        run.forget_after(proposal.step)


def changed_table(ledger: Ledger, changes: Changes) -> OwnerTable:
    """The owners and budgets that ``changes`` ask for: rows stay, owners that join come after them.

    An owner that withdraws keeps its row with no examples, and the budget under which it has spent what it has.
    """
    asked: dict[str, tuple[Budget, int]] = {name: (budget, size) for name, budget, size in ledger.wanted}
    honoured = {name: budget for name, budget, _ in ledger.table}
    _check_changes(changes, asked)
    for name in {**changes.budgets, **changes.sizes}:
        budget = changes.budgets[name] if name in changes.budgets else asked[name][0]
        size = changes.sizes[name] if name in changes.sizes else asked.get(name, (budget, 0))[1]
        _check_size(name, size)
        asked[name] = (budget, size)
    for name in changes.withdrawn:
        asked[name] = (honoured.get(name, asked[name][0]), 0)
    if ledger.table.unit != EXAMPLE:
        _work_out_shared(ledger.table, changes, asked)
    names = [name for name in asked if name in honoured or asked[name][1] > 0]
    budgets = [asked[name][0] for name in names]
    return OwnerTable(
        tuple(names),
        frozen_floats([budget.epsilon for budget in budgets]),
        frozen_floats([budget.delta for budget in budgets]),
        frozen_integers([asked[name][1] for name in names]),
        ledger.table.unit,
    )


def _work_out_shared(table: OwnerTable, changes: Changes, asked: dict[str, tuple[Budget, int]]) -> None:
    """Give units of several owners the smallest epsilon and the smallest delta among them, as they are now.

    If one of the owners withdraws, the units stay, without its rows and under its budget too; if all do, they leave.
    """
    for name, budget, size in list(table):
        parts = parts_of(name, asked)
        if not parts:
            if name in changes.withdrawn and size == 0 and any(name in parts_of(other, asked) for other in table.names):
                fix = f"all its {table.units} have other owners as well; withdraw those owners, or leave it in"
                raise _validate.fail("withdrawn", name, fix)
            continue
        if name in changes.budgets:
            fix = f"it stands for {table.units} of several owners; change the budgets of {' and '.join(parts)}"
            raise _validate.fail("owner", name, fix)
        if any(part in changes.budgets for part in parts):
            budgets = [asked[part][0] for part in parts]
            smallest = min(each.epsilon for each in budgets), min(each.delta for each in budgets)
            asked[name] = Budget(epsilon=smallest[0], delta=smallest[1]), asked[name][1]
        if all(asked[part][1] == 0 for part in parts) and any(part in changes.withdrawn for part in parts):
            asked[name] = budget, 0


class _Past:
    """The steps that stand, seen from the budgets that are asked for."""

    def __init__(self, ledger: Ledger, table: OwnerTable) -> None:
        self.ledger, self.table = ledger, table

    def phases(self, step: int) -> tuple[Phase, ...]:
        """The phases of the first ``step`` steps, with a row for every owner."""
        return tuple(widened(phase, len(self.table)) for phase in self.ledger.phases_until(step))

    @property
    def counted(self) -> Terms | None:
        """The terms under which classes were counted, with a row for every owner."""
        count = self.ledger.history.count
        return None if count is None else widened_terms(count, len(self.table))

    def spent(self, step: int) -> FloatArray:
        """What the first ``step`` steps have cost every owner, at the deltas that are asked for."""
        charges = [widened(phase, len(self.table)) for phase in self.ledger.history.charges_until(step)]
        return epsilons_spent(charges, self.table.deltas, self.ledger.accountant)

    def allows(self, step: int) -> bool:
        """Whether all owners allow what the first ``step`` steps have cost."""
        return bool((self.spent(step) <= self.table.epsilons).all())

    def first_over(self, step: int) -> tuple[str, float, float]:
        """An owner that does not allow the first ``step`` steps: its name, what it has spent, what it allows."""
        spent = self.spent(step)
        owner = int(np.argmax(spent / self.table.epsilons))
        return self.table.names[owner], float(spent[owner]), float(self.table.epsilons[owner])

    def proposal(
        self, action: str, reason: str, step: int, plan: Plan | None = None, resting: tuple[str, ...] = ()
    ) -> Proposal:
        ledger = self.ledger
        spent, kept = self.spent(ledger.steps), self.spent(step)
        return Proposal(
            action,
            reason,
            step,
            ledger.steps,
            ledger.published,
            self.table,
            plan,
            spent,
            kept,
            resting,
            ledger.position,
        )


def _check_changes(changes: Changes, asked: Mapping[str, object]) -> None:
    for name in changes.withdrawn:
        if name not in asked:
            raise UnknownOwnerError(name, f"owner {name!r} cannot withdraw: the ledger has no such owner")
        if name in changes.budgets or name in changes.sizes:
            raise InvalidArgumentError(f"owner {name!r}: it cannot withdraw and have a budget at once; ask for one")
    for name in changes.sizes:
        if name not in asked and name not in changes.budgets:
            raise UnknownOwnerError(name, f"owner {name!r} has a size and no budget: add it to budgets")


def _check_size(name: str, size: int) -> None:
    _validate.whole(0, **{f"sizes[{name!r}]": size})
    if size == 0:
        raise InvalidArgumentError(
            f"budgets[{name!r}]: the owner has no examples, or has withdrawn; give their number in sizes to let it join"
        )


def _last_allowed_step(run: RunFolder, past: _Past) -> int:
    """The step of the last whole checkpoint whose spending all owners allow; -1 if there is none."""
    found = run.checkpoints()
    if not found:
        raise InvalidArgumentError(f"run {str(run.path)!r} has no checkpoint yet: resume it first")
    for checkpoint in reversed(found):
        if past.allows(checkpoint.step) and _is_whole(checkpoint):
            return checkpoint.step
    return -1


def _is_whole(checkpoint: Checkpoint) -> bool:
    try:
        read_checkpoint(checkpoint.path, checkpoint.known)
    except CheckpointError:
        return False
    return True


def _plan_from(
    past: _Past, step: int, current: Plan, config: PlanConfig, verify: bool, rooms: Rooms | None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan whose first ``step`` steps stand, and the owners that rest in what comes after."""
    if config.steps < step:
        raise _validate.fail("steps", config.steps, f"{step} steps stand; ask for as many or more, all counted")
    table, phases, spent = past.table, past.phases(step), past.spent(step)
    if config.steps == step:
        return replace(current, table=table, phases=phases, spent=spent, config=config, count=past.counted), ()
    shares = np.where(table.sizes > 0, spent / table.epsilons, 0.0)
    rests = shares > 1 - LEAST_LEFT
    if rooms is not None:
        rests |= (table.sizes > 0) & ~(rooms.divergences > 0)
    while True:
        resting = tuple(name for name, rest in zip(table.names, rests, strict=True) if rest)
        asked = _for_examples(config, sum(size for name, _, size in table if name not in resting))
        try:
            plan = make_plan(
                table, asked, verify=verify, past=phases, counted=past.counted, resting=resting, rooms=rooms
            )
            return plan, resting
        except InfeasibleError as error:
            if error.owner is None or shares[table.names.index(error.owner)] == 0:
                raise
            rests = rests | (shares >= shares[table.names.index(error.owner)])


def _for_examples(config: PlanConfig, examples: int) -> PlanConfig:
    """The same with an expected batch of no more than the ``examples`` that take part."""
    batch = config.expected_batch_size
    return config if batch is None else replace(config, expected_batch_size=min(batch, max(examples, 1)))


def _published_reason(past: _Past) -> str:
    owner, spent, allowed = past.first_over(past.ledger.published)
    return (
        f"owner {owner!r} allows epsilon={allowed:g}, and had spent {rounded_up(spent)} when the model was published "
        f"after step {past.ledger.published}; what it has spent cannot be given back, so training stops here; "
        "the owner may allow that much, or withdraw"
    )


def _reason(past: _Past, step: int, plan: Plan) -> str:
    recorded, left = past.ledger.steps, plan.steps - step
    ahead = f"{left} more steps are planned with what is left" if left else "no steps are left; ask for more to go on"
    if step == recorded:
        return f"all owners allow what {step} steps have spent; {ahead}"
    if past.allows(recorded):
        return f"{recorded - step} recorded steps came after the last checkpoint and their outcome is lost; {ahead}"
    owner, spent, allowed = past.first_over(recorded)
    return (
        f"owner {owner!r} allows epsilon={allowed:g} and has spent {rounded_up(spent)}; the checkpoint after step "
        f"{step} is the last that all owners allow, and the {recorded - step} steps after it are given up; {ahead}"
    )
