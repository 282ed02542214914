"""The ledger: an append-only, hash-chained record of what every owner has spent, and its verification."""

from inosgd.ledger.ledger import Finding, History, Ledger, LedgerReport, verify_ledger

__all__ = ["Finding", "History", "Ledger", "LedgerReport", "verify_ledger"]
