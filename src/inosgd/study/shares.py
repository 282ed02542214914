"""Class shares of a study: what its file declares, and whose classes are counted under the budgets."""

from __future__ import annotations

import dataclasses

from inosgd.analysis.task import Task
from inosgd.class_shares import ClassShares
from inosgd.counting import Labels
from inosgd.data.tables import closest, read_table
from inosgd.errors import InvalidArgumentError
from inosgd.owners import EXAMPLE, OwnerTable
from inosgd.plan import Plan, Terms
from inosgd.plan_config import Counting, PlanConfig
from inosgd.study.auto import choose
from inosgd.study.budgets import refuse_repeated
from inosgd.study.config import TrainingConfig
from inosgd.study.reading import StudyFile
from inosgd.study.study import StudyData
from inosgd.units import parts_of


def declared_shares(study: StudyFile, task: Task, table: OwnerTable) -> ClassShares | None:
    """What the study file declares, itself or in a CSV file ``owner,CLASS,CLASS,...``; None if nothing.

    Raises:
        InvalidArgumentError: Naming the owner, the class or the sum that cannot be.
    """
    section = study.schema.shares
    given = section.owners
    if section.file is not None:
        columns = read_table([study.locate(section.file)], dict.fromkeys(("owner", *task.names), "shares.file"))
        numbers = {name: columns.numbers(name).tolist() for name in task.names}
        owners = columns.texts("owner")
        refuse_repeated(columns, owners)
        given = {owner: {name: numbers[name][row] for name in task.names} for row, owner in enumerate(owners)}
    if given is None:
        return None
    known = set(table.names)
    unknown = [name for name in given if name not in known]
    if unknown:
        fix = f"there is no such owner; {closest(unknown[0], list(table.names))}"
        raise study.error(f"shares.owners.{unknown[0]}", dict(given[unknown[0]]), fix)
    try:
        return ClassShares.declared(given, task.names)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{study.path}: {error}") from None


def settled(config: TrainingConfig, data: StudyData, planned: PlanConfig | None = None) -> TrainingConfig:
    """The configuration for the public facts of ``data``: what ``auto`` chooses, and whose classes are to be counted.

    Epochs become steps. A training that goes on keeps what it was ``planned`` by.

    Raises:
        InvalidArgumentError: If a loss is to be adjusted and there are no classes, or no shares of them.
    """
    config = choose(config.for_units(int(data.owners.table.sizes.sum())), data, planned)
    if config.method.adjustment is None:
        return config
    if data.task.kind != "classification":
        raise InvalidArgumentError(
            f"adjustment: {data.task.kind} has no classes whose shares a loss could be adjusted by; leave it out"
        )
    known = set() if data.shares is None else set(data.shares.owners)
    uncounted = tuple(name for name in _own_units(data.owners.table) if name not in known)
    if not config.count_classes or not uncounted:
        if not known:
            raise InvalidArgumentError(
                "adjustment: it needs class shares; declare them in [shares.owners], count them under the budgets with "
                "shares.count = true, or leave the adjustment out"
            )
        return config
    counting = Counting(data.task.outputs, uncounted)
    return dataclasses.replace(config, plan=dataclasses.replace(config.plan, counting=counting))


def _own_units(table: OwnerTable) -> list[str]:
    """Owners with units that are theirs alone; the few that several share are taken to be like the others."""
    shared = [table.unit != EXAMPLE and bool(parts_of(name, table.names)) for name in table.names]
    return [name for (name, _, size), joint in zip(table, shared, strict=True) if size > 0 and not joint]


def adjusted_by(config: TrainingConfig, data: StudyData, count: Terms | None) -> str | None:
    """What a loss was adjusted by, in words; None if it was not. ``count`` holds the terms of a count, if any."""
    adjustment = config.method.adjustment
    if adjustment is None:
        return None
    declared = 0 if data.shares is None else len(data.shares.owners)
    counted = 0 if count is None else int(count.sampling_rates.sum())
    pooled = max(int((data.owners.table.sizes > 0).sum()) - declared - counted, 0)
    numbers = {"declared for": declared, "counted under the budgets for": counted, "pooled for": pooled}
    sources = [f"{source} {number} owner{'s' * (number != 1)}" for source, number in numbers.items() if number]
    return (
        f"signals taken out of the loss (tau {adjustment.tau:g}, target {adjustment.target}) by class shares, "
        f"{', '.join(sources)}"
    )


def labels_for(plan: Plan, data: StudyData) -> Labels | None:
    """The classes of the examples, if ``plan`` counts them."""
    return None if plan.count is None else Labels(data.task.names, data.class_numbers)
