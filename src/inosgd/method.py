"""Methods: DP-SGD, IDP-SGD and INO-SGD as rows of data, not as classes.

All are the same `inosgd.training.train_step`. They differ in how the plan is made and in whether a tail
takes importance away from what is already learnt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from inosgd import _validate
from inosgd.adjustment import Adjustment
from inosgd.clipping import Clipping, FlatClipping
from inosgd.importance import Importance, Tail
from inosgd.order import DESCENDING_LOSS, Order

_ADDRESS = re.compile(" at 0x[0-9a-f]+")
"""Where a function of the user's own is in memory says nothing about what it does."""


@dataclass(frozen=True)
class Method:
    """One row: how budgets become a plan, and how a batch becomes a weighted sum.

    Attributes:
        name: What the method is called in tables.
        variant: The planner's name: "uniform" plans for all owners by the strictest budget, others individually.
        importance: The tail importance function; None keeps every example whole.
        order: Which examples come first.
        clipping: How gradients are kept within their thresholds.
        adjustment: How unequal signals are taken out of the loss; None leaves the loss as it is.
    """

    name: str
    variant: str
    importance: Importance | None = None
    order: Order = DESCENDING_LOSS
    clipping: Clipping = field(default_factory=FlatClipping)
    adjustment: Adjustment | None = None

    def tail(self, expected_threshold_sum: float) -> Tail | None:
        """The tail for a plan; fixed before training, whatever the batches turn out to be."""
        return None if self.importance is None else self.importance.tail(expected_threshold_sum)

    def to_json(self) -> dict[str, Any]:
        """Everything that tells it from another, as text: equal for equal methods, in every process."""
        return {
            "method": self.name,
            "variant": self.variant,
            "importance": None if self.importance is None else _ADDRESS.sub("", repr(self.importance)),
            "order": self.order.name,
            "clipping": _ADDRESS.sub("", repr(self.clipping)),
            "adjustment": None if self.adjustment is None else vars(self.adjustment),
        }


DP_SGD = Method("dp-sgd", variant="uniform")
IDP_SGD = Method("idp-sgd", variant="sample")
INO_SGD = Method("ino-sgd", variant="sample", importance=Importance())
INO_SGD_FAIR = Method("ino-sgd-fair", variant="fair", importance=Importance())
THRESHOLD = Method("threshold", variant="threshold")
AUTO = Method("auto", variant="fair", adjustment=Adjustment(tau=1.5, target="owners"))

METHODS = {method.name: method for method in (DP_SGD, IDP_SGD, INO_SGD, INO_SGD_FAIR, THRESHOLD, AUTO)}
"""The paper's three methods; INO-SGD with a plan that equalises the owners' signals; IDP-SGD with budgets that are
capped at a threshold; and what `inosgd.study.auto` makes of public facts."""


def method_named(name: str) -> Method:
    """The row called ``name``."""
    _validate.one_of(METHODS, method=name)
    return METHODS[name]
