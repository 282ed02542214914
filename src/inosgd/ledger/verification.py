"""The verification of a ledger: its chain, and what dp-accounting makes of every budget that was in force."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inosgd.accounting import epsilons_spent
from inosgd.errors import LedgerError
from inosgd.ledger.history import History, replay
from inosgd.ledger.ledger import existing, messages_of
from inosgd.ledger.records import Chain, read_chain
from inosgd.planning.verification import reference_epsilons
from inosgd.shown import rounded_up


@dataclass(frozen=True)
class Finding:
    """Something wrong with a ledger or a run: which record it is about (None: the whole), and what."""

    record: int | None
    message: str


@dataclass(frozen=True, eq=False)
class LedgerReport:
    """What a verification saw.

    Attributes:
        records: How many records were whole and in their place.
        steps: How many steps stand.
        spent: What each owner has spent, by name, by the ledger's own accountant.
        reference: The same by dp-accounting, for one owner of each distinct exposure.
        findings: What is wrong; empty if nothing is.
        notes: What is worth knowing and not wrong, such as a torn last record.
    """

    records: int
    steps: int
    spent: dict[str, float]
    reference: dict[str, float]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify_ledger(path: Path) -> LedgerReport:
    """Recompute the chain of the ledger at ``path``, and with dp-accounting what every owner has spent.

    Looks at every budget in force at some time: before each change and at the end. Changes nothing. Loss of the last
    records cannot be seen in the file alone; `inosgd.runs.verify_run` compares with the checkpoints.
    """
    try:
        chain = read_chain(existing(path))
        history, findings = _audited(chain)
    except LedgerError as error:
        return LedgerReport((error.record or 1) - 1, 0, {}, {}, (Finding(error.record, str(error)),))
    spent = epsilons_spent(history.charges_until(), history.table.deltas, history.accountant)
    names, reference = history.table.names, _reference(history)
    return LedgerReport(
        records=chain.position.records,
        steps=history.steps,
        spent=dict(zip(names, spent.tolist(), strict=True)),
        reference={names[owner]: epsilon for owner, epsilon in reference.items()},
        findings=tuple(findings),
        notes=messages_of(chain, cut=False),
    )


def _audited(chain: Chain) -> tuple[History, list[Finding]]:
    """What the chain says, and every budget that was passed while it was in force."""
    history, findings = replay(Chain(chain.bodies[:1], chain.hashes[:1], 0)), []
    for number, body in enumerate(chain.bodies[1:], start=2):
        if body["kind"] in ("change", "rollback"):
            findings += _passed(history, number - 1)
        history.take(body)
    return history, [*findings, *_passed(history, len(chain.bodies))]


def _passed(history: History, record: int) -> list[Finding]:
    """The budgets that dp-accounting finds passed by the steps that stand after ``record``."""
    table, findings = history.table, []
    for owner, epsilon in _reference(history).items():
        if not epsilon <= table.epsilons[owner]:
            findings.append(
                Finding(
                    record,
                    f"after record {record}, owner {table.names[owner]!r} has spent {rounded_up(epsilon, 6)} by "
                    f"dp-accounting and allows {table.epsilons[owner]:g}",
                )
            )
    return findings


def _reference(history: History) -> dict[int, float]:
    return reference_epsilons(history.table, history.charges_until(), history.accountant)
