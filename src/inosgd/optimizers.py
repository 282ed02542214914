"""Optimizers that know the noise: Adam whose second moment is that of the gradients, and not that of the noise.

Adam divides by the root of a running mean of squared gradients. Noise of variance Phi = (sigma / b)^2, which every
coordinate of the released gradient has, adds Phi to that mean. Where the noise is larger than the gradients, as it
is in private training, Adam then divides all coordinates by nearly the same number and is plain momentum. Subtracting
Phi again gives back what Adam is for (Tang et al. 2023, arXiv 2312.14334).

Guarantee:
    A function of released gradients and of public terms (noise scale and expected batch size): it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from inosgd import _validate

NOISE_VARIANCE = "noise_variance"
"""The entry of an optimizer's groups that `inosgd.training.train_step` sets to (sigma / b)^2 of each step's terms."""


def tell_noise_variance(optimizer: torch.optim.Optimizer, variance: float) -> None:
    """Tell an optimizer that asks for it the variance of the noise in the gradient that it is about to get."""
    for group in optimizer.param_groups:
        if NOISE_VARIANCE in group:
            group[NOISE_VARIANCE] = variance


class CorrectedAdam(torch.optim.Optimizer):
    """Adam without the noise's part in the second moment.

    With g_t the released gradient after t steps, Phi_t the variance of its noise, and all running means corrected for
    their start at 0 (division by 1 - beta^t):

        m_t  =  mean of g with beta_1,    v_t  =  mean of g^2 with beta_2,    p_t  =  mean of Phi with beta_2
        w_t  =  w_{t-1} - lr m_t / sqrt(max(v_t - p_t, floor p_t, eps^2))

    p_t is Phi where the terms are always the same, and follows them with the memory of v_t where they change. The
    difference v_t - p_t estimates the squared gradient; it may be negative, and where the gradient is far below the
    noise it is mostly error, of standard deviation sqrt(2 (1 - beta_2) / (1 + beta_2)) p_t, 3 % of p_t with the usual
    beta_2. The ``floor`` keeps such coordinates from taking huge steps. It is a share of the noise's variance, so that
    it means the same under every plan; the paper's is an absolute number, to be tuned with each. Without noise this is
    Adam with eps below the root.

    Args:
        params: Parameters or groups of them.
        lr: The learning rate.
        betas: The decay of the two means.
        eps: The least that is divided by.
        weight_decay: A step shrinks parameters by lr times this, apart from gradients, whose squares it would add to.
        floor: The least share of the noise's variance that is divided by the root of.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        floor: float = 0.1,
    ) -> None:
        _validate.finite_positive(lr=lr, eps=eps)
        _validate.non_negative(weight_decay=weight_decay, floor=floor)
        for index, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise _validate.fail(f"betas[{index}]", beta, "give a number of at least 0 and below 1")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "floor": floor}
        super().__init__(params, {**defaults, NOISE_VARIANCE: 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter), noise=0.0)
        (first, second), state["step"] = group["betas"], state["step"] + 1
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        state["noise"] = second * state["noise"] + (1 - second) * group[NOISE_VARIANCE]
        begun = 1 - second ** state["step"]
        noise = state["noise"] / begun
        least = max(group["floor"] * noise, group["eps"] ** 2)
        corrected = (state["square"] / begun - noise).clamp_(min=least).sqrt_()
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["mean"], corrected, value=-group["lr"] / (1 - first ** state["step"]))
