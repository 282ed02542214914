"""The ledger: an append-only record of what every owner has spent, written before anything is released.

On disk a ledger is JSON lines. The first line describes the owners; a ``terms`` line says what the steps after
it do; a ``step`` line is one release. Readers must refuse a ``format`` they do not know; new kinds of lines
raise it, new keys in a line do not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd.accounting import ACCOUNTANTS, epsilons_spent
from inosgd.errors import BudgetExceededError, InvalidArgumentError
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms

LEDGER_FORMAT = 1


class Ledger:
    """What has been released so far, and whether one more step may be.

    Guarantee:
        `record` returns only if, with the recorded step, every owner's epsilon at its own delta stays within its
        budget by ``accountant``. It has then written the step, so what is released later is never missing here;
        a step that was recorded and not released costs budget, not privacy.
    """

    def __init__(self, table: OwnerTable, accountant: str, path: Path | None = None, *, horizon: int = 1) -> None:
        """An empty ledger.

        Args:
            table: The owners and their budgets.
            accountant: "pld" or "rdp".
            path: Where to write; None keeps the ledger in memory. An existing file is refused.
            horizon: How many steps under the same terms to look ahead; spares repeated accounting.
        """
        _validate.whole(1, horizon=horizon)
        if accountant not in ACCOUNTANTS:
            raise InvalidArgumentError(f"accountant={accountant!r}: choose one of {', '.join(ACCOUNTANTS)}")
        self.table, self.accountant, self._horizon = table, accountant, horizon
        self._phases: list[Phase] = []
        self._allowed = 0
        self._file = None if path is None else _new_file(path)
        self._write({"format": LEDGER_FORMAT, "accountant": accountant, "owners": table.to_json()})

    @classmethod
    def for_plan(cls, plan: Plan, path: Path | None = None) -> Ledger:
        """An empty ledger for the owners of ``plan``, which looks as far ahead as the plan."""
        return cls(plan.table, plan.accountant, path, horizon=plan.steps)

    @property
    def steps(self) -> int:
        """How many steps have been recorded."""
        return sum(phase.steps for phase in self._phases)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The recorded steps, those with equal terms together."""
        return tuple(self._phases)

    def spent(self) -> FloatArray:
        """The epsilon each owner has spent so far, at its own delta."""
        return epsilons_spent(self._phases, self.table.deltas, self.accountant)

    def record(self, step: int, terms: Terms) -> None:
        """Write ``step`` under ``terms``, or refuse it with `BudgetExceededError` and write nothing."""
        if step != self.steps:
            raise InvalidArgumentError(f"step={step}: the ledger's next step is {self.steps}; record steps in order")
        _validate.same_length(owners=self.table, sampling_rates=terms.sampling_rates)
        continued = bool(self._phases) and self._phases[-1].terms == terms
        if not (continued and self._phases[-1].steps < self._allowed):
            self._look_ahead(step, terms, continued)
        if not continued:
            self._write({"terms": terms.to_json()})
        self._write({"step": step})
        self._phases = _with_step(self._phases, terms, continued)

    def close(self) -> None:
        """Close the file; a closed ledger can still be read."""
        if self._file is not None:
            self._file.close()

    def _look_ahead(self, step: int, terms: Terms, continued: bool) -> None:
        """Set how many steps of the current phase are allowed, or raise if the next one is not."""
        past = self._phases[:-1] if continued else self._phases
        taken = self._phases[-1].steps if continued else 0
        horizon = max(self._horizon - step, 1)
        while horizon > 1 and not self._fits(past, Phase(taken + horizon, terms)):
            horizon //= 2
        wanted = Phase(taken + horizon, terms)
        if horizon == 1 and not self._fits(past, wanted):
            raise self._refusal(step, [*past, wanted])
        self._allowed = wanted.steps

    def _fits(self, past: list[Phase], phase: Phase) -> bool:
        spent = epsilons_spent([*past, phase], self.table.deltas, self.accountant)
        return bool(np.all(spent <= self.table.epsilons))

    def _refusal(self, step: int, phases: list[Phase]) -> BudgetExceededError:
        spent = epsilons_spent(phases, self.table.deltas, self.accountant)
        owner = int(np.argmax(~(spent <= self.table.epsilons)))
        return BudgetExceededError(
            self.table.names[owner], float(self.table.epsilons[owner]), float(spent[owner]), step
        )

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()


def _with_step(phases: list[Phase], terms: Terms, continued: bool) -> list[Phase]:
    if not continued:
        return [*phases, Phase(1, terms)]
    return [*phases[:-1], Phase(phases[-1].steps + 1, terms)]


def _new_file(path: Path) -> Any:
    """A new file that only its user can read; an existing one is never touched."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidArgumentError(f"path={str(path)!r}: a ledger is already there; choose a new folder") from None
    return os.fdopen(descriptor, "w", encoding="utf-8")
