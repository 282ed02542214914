"""Verification of a run: its ledger, and every file beside it."""

from __future__ import annotations

from dataclasses import replace

from inosgd.errors import InosgdError
from inosgd.ledger.verification import Finding, LedgerReport, verify_ledger
from inosgd.runs.files import Comparison, compare
from inosgd.runs.folder import RunFolder

MOST_LOOKS = 10
"""How often files are compared with the ledger while another process changes them."""


def verify_run(run: RunFolder) -> LedgerReport:
    """`verify_ledger`, and: every file of the run is what the ledger says, and nothing is missing at its end.

    Changes nothing and needs no lock. What a process may have left that was killed is a note, not a finding, but for
    keys of random streams that should be erased by now.
    """
    report = verify_ledger(run.ledger_path)
    if not report.good:
        return report
    try:
        seen = _compared(run, run.plan().steps)
    except InosgdError as error:
        seen = _compared(run, None)
        if not seen.findings:
            seen = Comparison((Finding(None, str(error)),), seen.notes)
    return replace(report, findings=seen.findings, notes=(*report.notes, *seen.notes))


def _compared(run: RunFolder, planned: int | None) -> Comparison:
    """What is wrong at two looks: a training that goes on meanwhile may be in the middle of something at one."""
    seen = compare(run.path, planned)
    for _ in range(MOST_LOOKS):
        before, seen = seen, compare(run.path, planned) if seen.findings else seen
        if seen.findings == before.findings:
            break
    return seen
