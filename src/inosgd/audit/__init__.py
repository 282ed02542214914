"""Audits: attacks on one's own training, and what they prove.

An audit gives lower bounds on the privacy loss, with a stated confidence. A lower bound above what the accountant
claims shows that something is wrong; one below it shows nothing more than that this attack did not find anything.

    bounds      from counts of right and wrong guesses to a lower bound on epsilon
    claims      what the accountant says about every owner, and the best attack that it allows
    practice    what is really done in a training; `controls` are practices with a known defect
    shadow, batched, lira, roc     membership inference with shadow models
    insertion, game, accomplices   worst-case gradients inserted into a training
    canary, findings               many such trainings, and what they say about every owner

Everything here is computed from training data without noise and is not private: audits are for the model's owner.
"""

NOT_PRIVATE = (
    "What an audit computes comes from training data without any noise: it is not private. It is for the owner of the "
    "model; do not publish it."
)

__all__ = ["NOT_PRIVATE"]
