"""Methods: DP-SGD, IDP-SGD and INO-SGD as rows of data, not as classes.

All are the same `inosgd.training.train_step`. They differ in how the plan is made and in whether a tail
takes importance away from what is already learnt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inosgd.clipping import Clipping, FlatClipping
from inosgd.errors import InvalidArgumentError
from inosgd.importance import Importance, Tail
from inosgd.order import DESCENDING_LOSS, Order


@dataclass(frozen=True)
class Method:
    """One row: how budgets become a plan, and how a batch becomes a weighted sum.

    Attributes:
        name: What the method is called in tables.
        variant: The planner's name: "uniform" plans for all owners by the strictest budget, others individually.
        importance: The tail importance function; None keeps every example whole.
        order: Which examples come first.
        clipping: How gradients are kept within their thresholds.
    """

    name: str
    variant: str
    importance: Importance | None = None
    order: Order = DESCENDING_LOSS
    clipping: Clipping = field(default_factory=FlatClipping)

    def tail(self, expected_threshold_sum: float) -> Tail | None:
        """The tail for a plan; fixed before training, whatever the batches turn out to be."""
        return None if self.importance is None else self.importance.tail(expected_threshold_sum)


DP_SGD = Method("dp-sgd", variant="uniform")
IDP_SGD = Method("idp-sgd", variant="sample")
INO_SGD = Method("ino-sgd", variant="sample", importance=Importance())
INO_SGD_FAIR = Method("ino-sgd-fair", variant="fair", importance=Importance())

METHODS = {method.name: method for method in (DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR)}
"""The paper's three methods, and INO-SGD with a plan that equalises the owners' signals."""


def method_named(name: str) -> Method:
    """The row called ``name``."""
    if name not in METHODS:
        raise InvalidArgumentError(f"method={name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name]
