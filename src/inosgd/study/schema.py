"""The schema of study files: every key, its type and its limits. Keys that are not here are refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from inosgd.augmentation import Augmentation
from inosgd.data.notation import USUAL_MISSING, Notation
from inosgd.owners import EXAMPLE
from inosgd.planning import Fairness
from inosgd.study.declarations import parse_feature, parse_range

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Character = Annotated[str, StringConstraints(min_length=1, max_length=1)]
Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
AtLeastZero = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _range(value: Any) -> tuple[float, float]:
    if not (isinstance(value, list) and len(value) == 2):
        raise ValueError("give two numbers, the lower one first, such as [0, 255]")
    return parse_range(value)


def _paths(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _ranges(value: Any) -> tuple[tuple[float, float], ...]:
    several = isinstance(value, list) and value and all(isinstance(entry, list) for entry in value)
    try:
        return tuple(_range(entry) for entry in (value if several else [value]))
    except ValueError as error:
        raise ValueError(f"{error}; for several targets one range for all, or a list with one for each") from None


def _columns(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError('give text, in quotes: "...", or a list of such texts')
    return [value] if isinstance(value, str) else value


FeatureValue = Annotated[Any, BeforeValidator(parse_feature)]
RangeValue = Annotated[Any, BeforeValidator(_range)]
Columns = Annotated[list[Text], Field(min_length=1), BeforeValidator(_columns)]


class _Section(BaseModel):
    """A table of the file: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HeldOut(_Section):
    """What the model is judged by: a share of the rows, each by a coin of its own, or files that are kept apart."""

    fraction: Share | None = None
    seed: Seed = 0
    path: Annotated[list[Text], Field(min_length=1), BeforeValidator(_paths)] | None = None
    index: Text | None = None


class _Data(_Section):
    """What all kinds of data have.

    ``unit`` names the column or array that says which rows are protected together, such as all visits of a patient;
    without it each row is protected by itself. See `inosgd.units`.
    """

    classes: Annotated[list[Text], Field(min_length=2)] | None = None
    outside_range: Literal["refuse", "clamp"] = "refuse"
    held_out: HeldOut = HeldOut()
    unit: Text | None = None
    unit_name: Text | None = None
    max_rows: Count | None = None
    unit_gradient: Literal["mean", "sum"] = "mean"
    several_owners: Literal["strictest", "refuse"] = "strictest"

    @property
    def protected(self) -> str:
        """What is protected, in the singular: an example, or the unit by its name, else by that of its column."""
        if self.unit is None:
            return EXAMPLE
        return self.unit_name or re.sub(r"(?i)[ _-]?id$", "", self.unit) or self.unit


class TableData(_Data):
    """Rows of a CSV, TSV or Parquet file; Parquet may stay on disk, and every batch is read from there.

    ``drop_missing`` names columns without whose value a row is left out; targets and owners cannot be filled in. This
    costs no privacy: whether a row is left out depends on that row alone, a row that is left out influences nothing,
    and all others are encoded and held out as they would be if it stayed (see `inosgd.study.labels.Labels`).
    """

    kind: Literal["table"]
    path: Annotated[list[Text], Field(min_length=1), BeforeValidator(_paths)]
    on_disk: bool = False
    delimiter: Character | None = None
    decimal: Literal[".", ","] = "."
    thousands: Character | None = None
    missing: list[Annotated[str, StringConstraints(strip_whitespace=True)]] = list(USUAL_MISSING)
    drop_missing: list[Text] = []
    ignore: list[Text] = []
    target: Columns
    owner: Text | None = None
    epsilon: Text | None = None
    features: Annotated[dict[str, FeatureValue], Field(min_length=1)]
    unaccounted_scaling: bool = False


def notation_of(data: TableData) -> Notation:
    """How the cells of the study's tables are written."""
    return Notation(tuple(data.missing), data.decimal, data.thousands, data.delimiter)


def used_columns(data: TableData) -> dict[str, str]:
    """Each column that is read, and the key that asks for it."""
    return {name: f"data.features.{name}" for name in data.features} | label_names(data)


def label_names(data: TableData | ImageData | ArrayData) -> dict[str, str]:
    """Each column or array that says what a row is or whose, and the key that asks for it."""
    single = {"owner": data.owner, "epsilon": data.epsilon, "unit": data.unit}
    named = {name: f"data.{key}" for key, name in single.items() if name is not None}
    return dict.fromkeys(data.target or (), "data.target") | named


class ImageData(_Data):
    """Images in folders that name owner and class, or listed in a table."""

    kind: Literal["images"]
    path: Text
    layout: Literal["owner/class", "class/owner"] | None = None
    index: Text | None = None
    file: Text = "file"
    target: Columns | None = None
    owner: Text | None = None
    epsilon: Text | None = None
    size: Annotated[list[Annotated[int, Field(ge=1, le=10_000)]], Field(min_length=2, max_length=2)]
    channels: Literal[1, 3]
    resize: bool = False


class ArrayData(_Data):
    """Arrays, one entry per example."""

    kind: Literal["npz", "npy"]
    path: Text
    inputs: Text = "inputs"
    target: Columns = ["targets"]
    owner: Text | None = None
    epsilon: Text | None = None
    range: RangeValue | None = None
    vocabulary_size: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    unaccounted_scaling: bool = False


class NpzData(ArrayData):
    """Arrays of an ``.npz`` file."""

    kind: Literal["npz"]


class MappedData(ArrayData):
    """Arrays of ``.npy`` files in one folder, which stay on disk: every batch is read from there."""

    kind: Literal["npy"]


class TaskSection(_Section):
    """What is predicted: one of several classes, any of several labels, or numbers.

    ``range`` is the public range of numbers, one for all targets or one for each. It is always there, or fitted to the
    training data, which is unaccounted: with targets far from 0, clipping would leave only the signs of errors. Targets
    that are of order one already are trained on as they are with [-1, 1].
    """

    kind: Literal["classification", "multi-label", "regression"] = "classification"
    range: Annotated[Any, BeforeValidator(_ranges)] | None = None
    loss: Literal["squared error", "huber"] | None = None


class OwnerBudget(_Section):
    """A budget with a delta of its own."""

    epsilon: Positive
    delta: Delta | None = None


def _budget(value: Any) -> Any:
    return value if isinstance(value, dict) else {"epsilon": value}


class Budgets(_Section):
    """What every owner allows: here, in a CSV file, or in a column of the data with a common delta."""

    delta: Delta | None = None
    owners: Annotated[dict[str, Annotated[OwnerBudget, BeforeValidator(_budget)]], Field(min_length=1)] | None = None
    file: Text | None = None


class SharesSection(_Section):
    """Which share of each owner's rows is of each class: declared here or in a CSV file, or counted with noise."""

    count: bool = False
    owners: Annotated[dict[str, dict[str, float]], Field(min_length=1)] | None = None
    file: Text | None = None


class ModelSection(_Section):
    """Which model: ``mlp``, ``cnn``, ``lstm`` or ``package.module:factory``, and what it is called with."""

    name: Text
    arguments: dict[str, Any] = {}
    seed: Seed = 0


class TailSection(_Section):
    """The tail importance function: its shape, and its length as a share of the batch or in units of threshold."""

    shape: Literal["beta", "step"] = "beta"
    a: Positive = 1.0
    b: Positive = 1.0
    levels: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=1000)] | None = None
    share: Positive | None = None
    length: Positive | None = None


class FairnessSection(_Section):
    """The knobs of the variants ``fair`` and ``both``; exponent and max_ratio may be inf."""

    exponent: Annotated[float, Field(ge=0)] = Fairness().exponent
    max_ratio: Annotated[float, Field(ge=1)] = Fairness().max_ratio
    mix: Annotated[float, Field(ge=0, le=1)] = Fairness().mix


class AdjustmentSection(_Section):
    """How unequal signals are taken out of the loss; what is not given is the method's own, see `inosgd.adjustment`."""

    tau: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    target: Literal["natural", "owners", "classes"] | None = None


class TrainingSection(_Section):
    """How the model is trained."""

    method: Literal["dp-sgd", "idp-sgd", "ino-sgd", "ino-sgd-fair", "threshold", "auto"] = "auto"
    variant: Literal["uniform", "sample", "scale", "both", "fair", "threshold"] | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    steps: Count | None = None
    epochs: Positive | None = None
    expected_batch_size: Positive | None = None
    clipping_threshold: Positive | None = None
    noise_scale: Positive | None = None
    profile_margin: AtLeastZero | None = None
    order: Literal["descending-loss", "ascending-loss", "random", "owner-then-loss"] | None = None
    tail: TailSection | None = None
    adjustment: AdjustmentSection | None = None
    fairness: FairnessSection = FairnessSection()
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "adam-corrected"] = "sgd"
    learning_rate: Positive
    learning_rate_unit: Literal["batch", "noise"] = "batch"
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    averaging: Literal["none", "exponential", "tail"] = "none"
    averaging_decay: Share | None = None
    averaging_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    momentum: Share | None = None
    weight_decay: AtLeastZero | None = None
    augmentation: AugmentationSection | None = None
    seed: Seed | None = None


class AugmentationSection(_Section):
    """Copies of each image that stand for it, as `inosgd.augmentation` has them."""

    copies: Annotated[int, Field(ge=1, le=1000)] = Augmentation().copies
    padding: Annotated[int, Field(ge=0, le=1000)] = Augmentation().padding
    flip: bool = Augmentation().flip


class EvaluationSection(_Section):
    """What is reported about held-out examples; with ``public``, to owners too (`inosgd.serve`)."""

    every: Count | None = None
    public: bool = False
    per_class: bool = False
    balanced: bool = False
    owners_in_card: bool = False


class AccountSection(_Section):
    """Where trainings are added up with all others on the same units: the URL of a book, see `inosgd.accounts`.

    ``share`` is of what is left to each owner. ``key`` is the file of the key of fingerprints.
    """

    url: Text
    collection: Text | None = None
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    key: Text | None = None


def _account(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class StudySchema(_Section):
    """A whole study file."""

    account: Annotated[AccountSection, BeforeValidator(_account)] | None = None

    data: Annotated[TableData | ImageData | NpzData | MappedData, Field(discriminator="kind")]
    task: TaskSection = TaskSection()
    budgets: Budgets
    shares: SharesSection = SharesSection()
    model: ModelSection
    training: TrainingSection
    evaluation: EvaluationSection = EvaluationSection()
