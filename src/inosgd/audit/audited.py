"""What an audit attacks: a study by one method, the plan that is claimed, and the practice behind it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from inosgd import _validate
from inosgd.audit import NOT_PRIVATE
from inosgd.audit.controls import control_named
from inosgd.audit.practice import Practice, honest
from inosgd.audit.store import AuditFolder
from inosgd.files import folder_of, sha256
from inosgd.owners import OwnerTable
from inosgd.plan import Plan
from inosgd.study.config import plan_for
from inosgd.study.shares import settled
from inosgd.study.study import Study, StudyData, split_of


@dataclass(frozen=True, eq=False)
class Audited:
    """A study, its examples, what is claimed about its training, and what is really done."""

    study: Study
    data: StudyData
    claimed: Plan
    practice: Practice
    control: str | None
    seed: int

    @classmethod
    def of(cls, study: Study, control: str | None, seed: int, *, halves: bool) -> Self:
        """The training of ``study``, with a known defect if ``control`` names one; ``halves`` for shadow models."""
        _validate.whole(0, seed=seed)
        defect = None if control is None else control_named(control)
        data = split_of(study, seed)
        study = dataclasses.replace(study, config=settled(study.config, data))
        claimed = plan_for(study.config, _halved(data.owners.table) if halves else data.owners.table)
        practice = dataclasses.replace(honest(claimed, study.config.method), shares=data.shares)
        practice = practice if defect is None else defect.spoil(practice)
        if practice.by_row and data.units is None:
            raise _validate.fail(
                "control", control, "the study protects each example; audit one that gathers rows in units (data.unit)"
            )
        return cls(study, data, claimed, practice, control, seed)

    def folder(self, audit: str, out: Path | None, **more: int) -> AuditFolder:
        """The audit's folder: the given one, or one that its settings determine, so that it is found again."""
        settings = {
            "audit": audit,
            "study": self.study.name,
            "config": self.study.config.to_json(),
            "control": self.control,
            "seed": self.seed,
            "plan": sha256(self.claimed.to_json().encode()),
            **more,
        }
        method = self.study.config.method.name
        name = f"audits/{audit}-{self.study.name}-{method}{'' if self.control is None else '-' + self.control}"
        return AuditFolder(out or folder_of(name, settings), settings)

    def described(self) -> dict[str, Any]:
        """The head of a report."""
        config = self.study.config
        return {
            "study": self.study.name,
            "description": self.study.description,
            "config": config.to_json(),
            "method": config.method.name,
            "variant": config.plan.variant,
            "steps": self.claimed.steps,
            "unit": self.claimed.table.unit,
            "control": self.control,
            "seed": self.seed,
            "not_private": NOT_PRIVATE,
        }


def _halved(table: OwnerTable) -> OwnerTable:
    """The owners with half of their examples, as the shadow models have them on average."""
    return dataclasses.replace(table, sizes=(table.sizes + 1) // 2)
