"""Any other module with parameters: vmap of its own vector-Jacobian product."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap
from torch.utils import _pytree as pytree

from inosgd.errors import InvalidArgumentError
from inosgd.gradients.rules.forms import Dense, apart
from inosgd.gradients.rules.rule import Gradients, LayerCall, reads_output, reads_places


@reads_places
@reads_output
def fallback_rule(call: LayerCall) -> Gradients:
    """g_i = d_i^T dy_i/dtheta for every example i, where y_i = module(a_i) is computed once more.

    The rows of an example go together. Exact for modules that treat examples independently and draw no random numbers;
    the recomputed outputs are compared to the recorded ones.
    """
    module: nn.Module = call.module
    trained = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    values = {name: parameter.detach() for name, parameter in trained.items()}
    leaves, layout = pytree.tree_flatten((call.arguments, dict(call.keywords)))
    count = len(call.gradient) // call.places
    rows = (count, count * call.places)
    batched = [isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) in rows for leaf in leaves]
    pairs = zip(leaves, batched, strict=True)
    mapped = [apart(leaf.detach(), len(leaf) // count) for leaf, is_batched in pairs if is_batched]

    def one(gradient: torch.Tensor, *example: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        parts = iter(example)
        given = [next(parts) if is_batched else leaf for leaf, is_batched in zip(leaves, batched, strict=True)]
        arguments, keywords = pytree.tree_unflatten(given, layout)
        output, pull, *_ = vjp(lambda parameters: functional_call(module, parameters, arguments, keywords), values)
        return output, pull(gradient)[0]

    try:
        outputs, gradients = vmap(one)(apart(call.gradient, call.places), *mapped)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"{type(module).__name__} has no rule and cannot be mapped over examples ({error}); register_rule for it, "
            "or use ReferenceEngine"
        ) from error
    _check_recomputed(call, outputs.flatten(0, 1))
    return {tuple(trained.values()): Dense(tuple(gradients[name] for name in trained))}


def _check_recomputed(call: LayerCall, outputs: torch.Tensor) -> None:
    recorded = outputs if call.output is None else call.output
    tolerance = 1e-3 if recorded.dtype == torch.float32 else 1e-6
    if not torch.allclose(outputs, recorded, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise InvalidArgumentError(
            f"{type(call.module).__name__} gives an example another output alone than in its batch; it mixes examples "
            "or draws random numbers: register_rule for it"
        )
