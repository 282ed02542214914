"""Accounts: budgets across trainings, in a book that several trainings share.

    book = Accounts.create("sqlite:///accounts.db")
    book.open_collection("patients", owners.table)
    left = book.left("patients", owners.table, share=0.5)        # half of what is left, for each owner
    plan = make_plan(owners.table, config, rooms=left)
    draw = Draw.reserve(book, "patients", plan)
    state = TrainingState.start(trainer, model, optimizer, source, draw.ledger(plan))
    fit(trainer, state)
    draw.finish()                                                # what no noise was drawn for is given back

`inosgd.accounts.filter` says which theorem adds up the charges.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inosgd.accounts.book import Accounts
    from inosgd.accounts.draws import Draw
    from inosgd.accounts.fingerprints import fingerprints
    from inosgd.accounts.receipts import receipt_of
    from inosgd.accounts.verification import verify_book
else:
    from inosgd._lazy import loaded_when_used

    __getattr__, __dir__ = loaded_when_used(
        __name__,
        {
            "inosgd.accounts.book": ("Accounts",),
            "inosgd.accounts.draws": ("Draw",),
            "inosgd.accounts.fingerprints": ("fingerprints",),
            "inosgd.accounts.receipts": ("receipt_of",),
            "inosgd.accounts.verification": ("verify_book",),
        },
    )

__all__ = ["Accounts", "Draw", "fingerprints", "receipt_of", "verify_book"]
