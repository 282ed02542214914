"""Plan configurations: what is asked of a plan, apart from who takes part in it.

    config = PlanConfig(steps=1000, variant="fair", expected_batch_size=256, clipping_threshold=1.0)
    plan = make_plan(table, config)                 # `plan.config` is `config`
    plan = make_plan(table, replace(config, steps=2000))

A configuration holds no data: owners, budgets and sizes are in the `inosgd.OwnerTable`, and what follows from both is
the `inosgd.Plan`. It is JSON, and plans carry theirs, so that planning again asks for the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from inosgd import _validate
from inosgd.errors import InvalidArgumentError

VARIANTS = ("uniform", "sample", "scale", "both", "fair", "threshold")
"""Which point of each owner's privacy curve a plan chooses; `inosgd.planning.variants` says how."""

ACCOUNTANTS = ("pld", "rdp")
"""Privacy-loss distributions, and Rényi divergences."""

TARGETS = ("expected_batch_size", "clipping_threshold", "noise_scale")

KNOBS = "fairness."
"""How the keys of `Fairness` begin."""


def steps_of_epochs(epochs: float, units: int, expected_batch_size: float) -> int:
    """How many steps draw ``units`` units ``epochs`` times over on the mean, rounded up.

    >>> steps_of_epochs(3, 1000, 64)
    47
    """
    _validate.finite_positive(epochs=epochs, expected_batch_size=expected_batch_size)
    _validate.whole(1, units=units)
    return math.ceil(epochs * units / expected_batch_size)


@dataclass(frozen=True)
class Fairness:
    """The knobs of the variants that trade one owner's signal for another's.

    Attributes:
        exponent: For ``fair``: 0 gives the most total signal, infinity equal signals.
        max_ratio: For ``fair``: no owner's signal per example may exceed this many times the strictest one's.
            1 is the balance of DP-SGD, infinity sets no cap. What an owner is capped at stays unspent and its own.
        mix: For ``both``: 0 is SCALE, 1 is SAMPLE.
    """

    exponent: float = 4.0
    max_ratio: float = 2.0
    mix: float = 0.5

    def __post_init__(self) -> None:
        if not self.exponent >= 0:
            raise _validate.fail("exponent", self.exponent, "give a number of at least 0, or math.inf")
        if not self.max_ratio >= 1:
            raise _validate.fail("max_ratio", self.max_ratio, "give a number of at least 1, or math.inf")
        _validate.closed_unit(mix=self.mix)


@dataclass(frozen=True)
class Counting:
    """That the classes of owners are counted under their budgets, once, before the first step (`inosgd.counting`).

    Attributes:
        classes: How many classes there are.
        owners: Who is counted; None for all.
        share: Which share of the Gaussian parameter of its budget a count may take from an owner. Squares of
            parameters add up, so that it raises the noise of the training by about share^2 / 2: 1% for 0.14.
    """

    classes: int
    owners: tuple[str, ...] | None = None
    share: float = 0.14

    def __post_init__(self) -> None:
        _validate.whole(2, classes=self.classes)
        _validate.open_unit(share=self.share)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of ``vars``."""
        owners = fields["owners"]
        return cls(int(fields["classes"]), None if owners is None else tuple(owners), float(fields["share"]))


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What is asked of a plan. It holds no data and no budgets, and is public.

    Exactly two of ``expected_batch_size``, ``clipping_threshold`` and ``noise_scale`` are given: batch and
    threshold, and the noise scale follows; or a noise scale with the threshold (``sample``: the batch follows) or
    with the batch (other variants: the mean threshold follows).

    Attributes:
        steps: The number of all steps, those already taken included.
        variant: One of `VARIANTS`.
        expected_batch_size: The mean of the batch size.
        clipping_threshold: The mean threshold over all examples.
        noise_scale: The standard deviation of the noise on the sum.
        accountant: One of `ACCOUNTANTS`.
        fairness: The knobs of ``fair`` and ``both``.
        profile_margin: Keep epsilon at delta / 10, / 100 and / 1000 within (1 + margin) of what a plain Gaussian
            mechanism with the same budget has there; None limits epsilon at delta alone.
        allow_large_deltas: Whether a delta may be one over the number of examples or more. Such a delta allows
            publishing an example whole, and is refused as a mistake unless this is True.
        counting: Whose classes are counted before the first step; None counts none.
    """

    steps: int
    variant: str
    expected_batch_size: float | None = None
    clipping_threshold: float | None = None
    noise_scale: float | None = None
    accountant: str = "pld"
    fairness: Fairness = Fairness()
    profile_margin: float | None = None
    allow_large_deltas: bool = False
    counting: Counting | None = None

    def __post_init__(self) -> None:
        _validate.whole(1, steps=self.steps)
        _validate.one_of(VARIANTS, variant=self.variant)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)
        if self.profile_margin is not None:
            _validate.non_negative(profile_margin=self.profile_margin)
        self._check_targets()

    def _check_targets(self) -> None:
        """Raise unless exactly the right two of the three are given for the variant."""
        targets = {name: getattr(self, name) for name in TARGETS}
        given = {name: value for name, value in targets.items() if value is not None}
        _validate.finite_positive(**given)
        beside_noise = "clipping_threshold" if self.variant == "sample" else "expected_batch_size"
        wanted = [{"expected_batch_size", "clipping_threshold"}, {"noise_scale", beside_noise}]
        if set(given) not in wanted:
            options = " or ".join(" and ".join(sorted(option)) for option in wanted)
            got = ", ".join(f"{name}={value!r}" for name, value in targets.items())
            raise InvalidArgumentError(f"{got}: for variant {self.variant!r} give exactly {options}")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same with other values, named by their keys in a study file, such as ``steps`` and ``fairness.mix``.

        Infinite knobs may be given as text, as in JSON.
        """
        knobs = {key.removeprefix(KNOBS): float(value) for key, value in changes.items() if key.startswith(KNOBS)}
        rest = {key: value for key, value in changes.items() if not key.startswith(KNOBS)}
        return replace(self, fairness=replace(self.fairness, **knobs), **rest)

    def to_json(self) -> dict[str, Any]:
        """The fields; infinite knobs as text, which JSON numbers cannot hold."""
        knobs = {name: value if math.isfinite(value) else "inf" for name, value in vars(self.fairness).items()}
        return {**vars(self), "fairness": knobs, "counting": None if self.counting is None else vars(self.counting)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        knobs = {name: float(value) for name, value in fields["fairness"].items()}
        counting = None if fields["counting"] is None else Counting.from_json(fields["counting"])
        return cls(**{**fields, "fairness": Fairness(**knobs), "counting": counting})
