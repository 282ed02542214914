"""Tuning: choosing tail, learning rate, clipping threshold and plan of a study, and what that costs its owners.

Every model that is trained on private examples and influences a choice costs privacy. There are two honest ways:

- *On public data* (`tune_on_public_data`). The trials train on and are judged by examples that are public.
  The private examples are never touched, so the choice costs them nothing.
- *On private data* (`price_tuning`, then `tune_on_private_data`). A random number of trials is trained on the private
  examples; the best model is kept and the others are forgotten unseen. What that costs every owner is known before it
  starts (`inosgd.accounting.selection`), and the trials are planned for smaller budgets, so that it fits.

Judging trials by held-out examples that are public does not make them free: their models were trained on private ones.
"""

from inosgd.tuning.candidates import Candidate, Space
from inosgd.tuning.pricing import Priced, price_tuning
from inosgd.tuning.private import Chosen, tune_on_private_data
from inosgd.tuning.public import Scored, tune_on_public_data

__all__ = [
    "Candidate",
    "Chosen",
    "Priced",
    "Scored",
    "Space",
    "price_tuning",
    "tune_on_private_data",
    "tune_on_public_data",
]
