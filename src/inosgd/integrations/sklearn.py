"""scikit-learn estimators that train under the individual budgets of owners.

They make a `Study` of arrays and train it as every study is trained: the same plan, builder, step and ledger.

Guarantee:
    With ``random_state=None``, a fitted estimator is (epsilon_n, delta_n)-differentially private for each example of
    owner n, for its addition or removal, by the budget of that owner: `predict` and all fitted attributes may be
    published. This holds for one call of ``fit``; each call spends the budgets anew, and a ledger covers one.

    Public, and therefore not protected: all parameters of the constructor (ranges, classes, declared class shares,
    steps), the names of owners, their budgets, and how many examples each has. Nothing is fitted to ``X`` or ``y``
    without noise: inputs and targets are scaled by public ranges, one value at a time. What is fitted before the
    estimator, such as a ``StandardScaler`` in a pipeline, has no such guarantee.

    Errors about single values, and `score` on training examples, tell of examples without noise: keep them.

Many fits:
    ``GridSearchCV``, ``cross_val_score`` and other meta-estimators fit *clones*, each of which would spend all budgets
    and none of which knows of the others. A clone therefore refuses ``fit``. ``inosgd tune --private`` has a price for
    the whole search, and shows it first.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from inosgd import _validate
from inosgd._arrays import FloatArray
from inosgd._extras import needs
from inosgd.analysis.measures import softmax
from inosgd.analysis.task import Task, classification, in_units, regression, scaled
from inosgd.class_shares import ClassShares
from inosgd.data.scaling import Range
from inosgd.errors import InvalidArgumentError
from inosgd.method import Method, method_named
from inosgd.models.general import mlp
from inosgd.modes import evaluating
from inosgd.owners import Budget, Owners
from inosgd.plan_config import PlanConfig
from inosgd.study.building import build, source_for
from inosgd.study.config import TrainingConfig, plan_once
from inosgd.study.encoding import scaled_columns
from inosgd.study.shares import settled
from inosgd.study.study import Groups, LabelledExamples, Study, StudyData
from inosgd.training import TrainingState
from inosgd.training import fit as train
from inosgd.units import Units

with needs("data"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

Limits = tuple[float, float]
Factory = Callable[..., nn.Module]

BLOCK = 256
"""Rows that pass a model at once in predictions; always as many, so that a row has the same bits beside any others."""

TUNING = (
    "To choose settings on private data, use `inosgd tune --private` (docs/tuning.md), which has a price for the whole "
    "search"
)


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common; each has ``_targets``, from ``y`` to a task and a tensor."""

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        owners: Sequence[object] | npt.NDArray[Any] | None = None,
        budgets: Mapping[Any, Budget | float] | None = None,
        delta: float | None = None,
        units: Sequence[object] | npt.NDArray[Any] | None = None,
        unit_name: str = "unit",
        max_rows: int | None = None,
    ) -> Self:
        """Train under the budgets; see the guarantee of `inosgd.integrations.sklearn`.

        Args:
            X: Numbers, a row per example, within ``ranges``.
            y: The target of each example. Sensitive, as ``X`` is.
            owners: Whose each example is, one label per row.
            budgets: By owner, a `Budget`, or an epsilon if a common ``delta`` is given. Public.
            delta: Of budgets that are an epsilon alone.
            units: Which rows are protected together, one label per row, such as patients; None for each row by itself.
            unit_name: What a unit is called.
            max_rows: How many rows of a unit a step takes at most; None for all.

        Raises:
            InvalidArgumentError: Without owners or budgets, in a clone, or for values outside their public ranges.
        """
        if owners is None or budgets is None:
            raise InvalidArgumentError(
                f"{'owners' if owners is None else 'budgets'}=None: a private estimator is fitted by fit(X, y, "
                "owners=..., budgets=...), since without owners there are no budgets to keep; GridSearchCV, "
                f"cross_val_score and their like give none. {TUNING}"
            )
        self._refuse_clone()
        if isinstance(X, DataLoader | Dataset):
            fix = "give an array with a row per example, or train a data set with inosgd.Trainer"
            raise InvalidArgumentError(f"X: a {type(X).__name__}; {fix}")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=isinstance(self, RegressorMixin))  # noqa: N806
        data = self._study_data(X, y, Owners.from_labels(owners, budgets, delta=delta))
        if units is not None:
            data = _gathered(data, Units.of(units, name=unit_name, max_rows=max_rows))
        config = settled(self._config(), data)
        origin = json.dumps({"kind": "scikit-learn"})
        study = Study("scikit-learn", "arrays with owners", origin, config, "model", lambda _: data, self._network)
        built = build(study, data, plan_once(config, data.owners.table), seed=self.random_state or 0)
        source = source_for(self.random_state)
        state = TrainingState.start(built.trainer, built.model, built.optimizer, source, also=built.also)
        with train(built.trainer, state).result() as model:
            self.model_ = copy.deepcopy(model)
        self._task, self._scaled_by = data.task, self._limits(X.shape[1])
        self.plan_, self.ledger_ = built.trainer.plan, state.ledger
        self.spent_ = dict(zip(state.ledger.table.names, map(float, state.ledger.spent()), strict=True))
        return self

    def __sklearn_clone__(self) -> Self:
        cloned: Self = super().__sklearn_clone__()
        cloned._is_clone = True
        return cloned

    def _refuse_clone(self) -> None:
        if getattr(self, "_is_clone", False):
            raise InvalidArgumentError(
                f"{type(self).__name__}: this is a clone, as GridSearchCV, cross_val_score and other meta-estimators "
                "make them to train many times; each would spend all budgets anew, and no ledger would add them up. "
                f"{TUNING}; for a single training, construct a new estimator"
            )

    def _study_data(self, inputs: FloatArray, y: npt.NDArray[Any], owners: Owners) -> StudyData:
        limits = self._limits(inputs.shape[1])
        for column, each in enumerate(limits.values()):
            _check_within(f"X[:, {column}]", inputs[:, column], each, "ranges")
        task, targets = self._targets(y)
        encoded, encoding = scaled_columns(limits, inputs)
        examples, groups = LabelledExamples(torch.from_numpy(encoded), targets), Groups.of_owners(owners.table)
        shares = self._shares(task, owners)
        return StudyData(owners, examples, None, task, groups, owners.assignment, encoding, shares=shares)

    def _limits(self, columns: int) -> dict[str, Range]:
        """The public range of each column."""
        given = np.asarray((-1.0, 1.0) if self.ranges is None else self.ranges, dtype=np.float64)
        if given.shape not in ((2,), (columns, 2)):
            fix = f"give a pair (low, high) for all columns, or one for each of {columns}"
            raise _validate.fail("ranges", self.ranges, fix)
        pairs = np.broadcast_to(given, (columns, 2)).tolist()
        return {f"x{column}": Range(*pair) for column, pair in enumerate(pairs)}

    def _shares(self, task: Task, owners: Owners) -> ClassShares | None:
        """Class shares that are declared; none where there are no classes."""
        return None

    def _config(self) -> TrainingConfig:
        method = self.method if isinstance(self.method, Method) else method_named(self.method)
        if self.random_state is not None:
            _validate.whole(0, random_state=self.random_state)
            warnings.warn(
                f"random_state={self.random_state}: the training can be repeated, and any party that knows the seed "
                "can remove the noise; fit with random_state=None before anything of it is published",
                stacklevel=3,
            )
        plan = PlanConfig(
            steps=self.steps,
            variant=method.variant,
            expected_batch_size=self.expected_batch_size,
            clipping_threshold=self.clipping_threshold,
        )
        counted, seed = getattr(self, "count_classes", False), self.random_state
        return TrainingConfig(
            method, plan, self.learning_rate, seed=seed, count_classes=counted, learning_rate_unit="noise"
        )

    def _network(self, data: StudyData, seed: int) -> nn.Module:
        inputs, outputs = data.examples.inputs.shape[1], data.task.outputs
        if isinstance(self.model, int | nn.Module):
            fix = "give hidden widths such as (16,), or a function that returns a new module for every fit"
            raise _validate.fail("model", self.model, fix)
        if not callable(self.model):
            return mlp(inputs, outputs, hidden=tuple(self.model), seed=seed)
        built = self.model(inputs, outputs, seed=seed)
        if not isinstance(built, nn.Module):
            raise InvalidArgumentError(f"model: it returned {type(built).__name__}; return a torch.nn.Module")
        return built

    @torch.no_grad()
    def _outputs(self, X: Any) -> FloatArray:  # noqa: N803
        """What the model says of each row; values outside the public ranges are brought to their ends."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)  # noqa: N806
        inputs, _ = scaled_columns(self._scaled_by, X)
        blocks = torch.split(torch.from_numpy(np.pad(inputs, ((0, -len(X) % BLOCK), (0, 0)))), BLOCK)
        with evaluating(self.model_):
            found: FloatArray = torch.cat([self.model_(block) for block in blocks])[: len(X)].double().numpy()
        return found


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A classifier that is trained under the budgets of owners; the module states what is promised and what is public.

    ``classes`` have to be named. Reading them off ``y`` would publish which classes occur, and the only example of a
    rare class would be seen by anyone who looks at ``classes_``. A class that no example has is learnt as never seen.

    Args:
        model: Widths of the hidden layers of a perceptron with Tanh, () for a linear model; or a function of the number
            of inputs, the number of outputs and ``seed=`` that returns a torch module.
        classes: All classes that there may be.
        method: A name of `inosgd.method.METHODS`, or a `Method`.
        steps: How many steps are taken.
        expected_batch_size: The mean of the batch size.
        clipping_threshold: The mean threshold that gradients are clipped to.
        learning_rate: In noise units, see `inosgd.training.Trainer`: it carries over to other plans and budgets.
        ranges: The public range (low, high) of all columns, or a list of one for each; None if all values lie between
            -1 and 1. Values outside are refused by ``fit``, and brought to the ends of the range by ``predict``.
        class_shares: By owner and class, the share of the owner's examples, if that is public.
        count_classes: Whether shares that are not declared are counted under the budgets; see `inosgd.counting`.
        random_state: None for secure randomness. A whole number makes a training repeatable and *not private*.

    Attributes:
        classes_: The classes, sorted.
        n_features_in_: How many columns ``X`` had.
        model_: The trained module.
        plan_: The plan; JSON by its ``to_json``.
        ledger_: The ledger, in memory.
        spent_: Epsilon by owner, at the owner's delta.
    """

    def __init__(
        self,
        model: Sequence[int] | Factory = (16,),
        *,
        classes: Sequence[Any] | None = None,
        method: str | Method = "auto",
        steps: int = 200,
        expected_batch_size: float = 64,
        clipping_threshold: float = 0.1,
        learning_rate: float = 0.08,
        ranges: Limits | Sequence[Limits] | None = None,
        class_shares: Mapping[Any, Mapping[Any, float]] | None = None,
        count_classes: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.model, self.classes, self.method, self.steps = model, classes, method, steps
        self.expected_batch_size, self.clipping_threshold = expected_batch_size, clipping_threshold
        self.learning_rate, self.ranges = learning_rate, ranges
        self.class_shares, self.count_classes, self.random_state = class_shares, count_classes, random_state

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The most probable class of each row."""
        outputs = self._outputs(X)
        predicted: npt.NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return predicted

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """The probability of each class, in the order of ``classes_``."""
        return softmax(self._outputs(X))

    def _targets(self, y: npt.NDArray[Any]) -> tuple[Task, torch.Tensor]:
        check_classification_targets(y)
        if self.classes is None:
            raise InvalidArgumentError(
                "classes=None: name all classes that there may be; reading them off y would publish which occur"
            )
        self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < len(self.classes):
            raise _validate.fail("classes", self.classes, "a class appears twice; give each once")
        if len(self.classes_) < 2:
            raise InvalidArgumentError(f"classes: {len(self.classes_)} class is named; name at least two")
        places = {name: place for place, name in enumerate(self.classes_.tolist())}
        unknown = sorted(map(str, set(y.tolist()) - set(places)))
        if unknown:
            raise InvalidArgumentError(f"y: {unknown[0]!r} is none of the classes; correct it, or add it to classes")
        numbers = torch.tensor([places[name] for name in y.tolist()], dtype=torch.int64)
        return classification([str(name) for name in places]), numbers

    def _shares(self, task: Task, owners: Owners) -> ClassShares | None:
        if self.class_shares is None:
            return None
        rows = {str(owner): row for owner, row in self.class_shares.items()}
        given = {owner: {str(name): share for name, share in row.items()} for owner, row in rows.items()}
        unknown = [owner for owner in given if owner not in owners.table.names]
        if unknown:
            raise _validate.fail("class_shares", unknown[0], "there is no such owner; name owners as budgets does")
        return ClassShares.declared(given, task.names)


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A regressor that is trained under the budgets of owners; the module states what is promised and what is public.

    ``target_range`` is the public range (low, high) of ``y``, by which it is scaled; targets outside are refused by
    ``fit``. Other parameters and fitted attributes are those of `PrivateClassifier`, but for classes.
    """

    def __init__(
        self,
        model: Sequence[int] | Factory = (16,),
        *,
        target_range: Limits | None = None,
        method: str | Method = "auto",
        steps: int = 200,
        expected_batch_size: float = 64,
        clipping_threshold: float = 0.5,
        learning_rate: float = 0.01,
        ranges: Limits | Sequence[Limits] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.model, self.target_range, self.method, self.steps = model, target_range, method, steps
        self.expected_batch_size, self.clipping_threshold = expected_batch_size, clipping_threshold
        self.learning_rate, self.ranges, self.random_state = learning_rate, ranges, random_state

    def predict(self, X: Any) -> FloatArray:  # noqa: N803
        """The target of each row, in its own units."""
        outputs = self._outputs(X)
        return in_units(self._task, outputs)[:, 0]

    def _targets(self, y: npt.NDArray[Any]) -> tuple[Task, torch.Tensor]:
        if self.target_range is None:
            raise InvalidArgumentError(
                "target_range=None: give the public range (low, high) of y; one fitted to y would not be private"
            )
        limits = Range(*self.target_range)
        _check_within("y", y, limits, "target_range")
        task = regression(["y"], ranges=[(limits.low, limits.high)])
        return task, torch.from_numpy(scaled(task, y[:, None].astype(np.float64)).astype(np.float32))


def _gathered(data: StudyData, units: Units) -> StudyData:
    """The data with its rows in units, which its owners then own."""
    owners = units.owned_by(data.owners)
    groups = Groups.of_owners(owners.table)
    return replace(
        data,
        owners=owners,
        groups=groups,
        train_groups=owners.assignment,
        units=units,
        row_owners=data.owners.assignment,
    )


def _check_within(name: str, values: npt.NDArray[Any], limits: Range, parameter: str) -> None:
    outside = int(limits.outside(values).sum())
    if outside:
        raise InvalidArgumentError(
            f"{name}: {outside} of {len(values)} values lie outside [{limits.low:g}, {limits.high:g}]; widen "
            f"{parameter} by what is publicly known, or clip the values"
        )
