"""Which checkpoints a run keeps, when it has written many.

A rollback goes to the last checkpoint whose spending all owners allow (`inosgd.runs.progression`), so that any
checkpoint may be needed; one that is not there costs the steps since the one before it. Of more than `MOST`, the one
goes whose neighbours are closest together, until `MOST` are left. Kept in any case are the first, which has spent
nothing, the newest, from which a killed training goes on, and those of published models.

Guarantee:
    With n checkpoints to choose from, the steps between a checkpoint's neighbours add up to at most twice all steps, so
    the gap that its removal leaves is at most 2 / n of them. A rollback gives up so much more than it had to, and it
    spends less: no owner's budget rests on which checkpoints are kept.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from inosgd.ledger.history import KnownCheckpoint
from inosgd.runs.files import WITH_KEYS

MOST = 64


def superfluous(standing: Sequence[KnownCheckpoint], published: Container[int], most: int = MOST) -> list[str]:
    """The names of the checkpoints to remove.

    Args:
        standing: All that stand, the newest last.
        published: The steps after which the model was published.
        most: How many may stay; more do, if so many are kept in any case.
    """
    kept, removed = list(standing), []
    while len(kept) > most:
        places = [place for place in range(1, len(kept) - WITH_KEYS) if kept[place].step not in published]
        if not places:
            break
        closest = min(places, key=lambda place: kept[place + 1].step - kept[place - 1].step)
        removed.append(kept.pop(closest).name)
    return removed
