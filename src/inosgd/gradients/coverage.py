"""Whether the losses of a pass depend on trained parameters only by what was recorded.

Gradients are put together from records. What is computed from a parameter past all of them (a function of a layer's
weight, a view that was changed in place, a derivative inside the model) would be missing in norms and sums. Values are
compared at few batches; autograd's graph knows at every one, for any branch that a model takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge

from inosgd.gradients.rules.recorder import Edge, Record


def uncovered(losses: torch.Tensor, records: Iterable[Record], parameters: Mapping[str, nn.Parameter]) -> str | None:
    """The name of a parameter that losses depend on past the records; None if there is none.

    Guarantee:
        The walk goes from the losses along all edges of autograd's graph. At a recorded output it goes on behind what
        the output was computed from, so that it meets a parameter if and only if some path to it has no record.
        Parameters that an ``autograd.Function`` reads without being given them are not in the graph.
    """
    behind: dict[Edge, Sequence[tuple[Node | None, int]]] = {}
    for record in records:
        for output in record.outputs:
            if output.edge is not None:
                behind[output.edge[:2]] = record.behind
    waiting: list[Edge] = [get_gradient_edge(losses)[:2]] if losses.requires_grad else []
    known = set(waiting)
    while waiting:
        edge = waiting.pop()
        found = behind.get(edge)
        if found is None:
            found = edge[0].next_functions
            leaf = None if found else getattr(edge[0], "variable", None)  # where autograd adds up a leaf's gradient
            for name, parameter in parameters.items() if leaf is not None else ():
                if parameter is leaf:
                    return name
        for node, place in found:
            if node is not None and (node, place) not in known:
                known.add((node, place))
                waiting.append((node, place))
    return None
