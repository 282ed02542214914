"""The ledger: an append-only, hash-chained record of what every owner has spent, and its verification."""

from inosgd.ledger.history import History
from inosgd.ledger.ledger import Ledger
from inosgd.ledger.verification import Finding, LedgerReport, verify_ledger

__all__ = ["Finding", "History", "Ledger", "LedgerReport", "verify_ledger"]
