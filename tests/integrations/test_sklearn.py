"""Private estimators: budgets kept, nothing read off the data without noise, and no search without a price."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from inosgd import IDP_SGD, Budget, Owners, PlanConfig, SeededSource, TrainingState, fit
from inosgd.errors import InvalidArgumentError, UnknownOwnerError
from inosgd.integrations.sklearn import PrivateClassifier, PrivateRegressor
from inosgd.study.breast_cancer import LARGEST
from inosgd.study.building import build
from inosgd.study.config import TrainingConfig, plan_once
from inosgd.study.study import Study

COUNT = 40
BUDGETS = {"north": Budget(epsilon=1.0, delta=1e-5), "south": Budget(epsilon=8.0, delta=1e-5)}
OWNERS = ["north"] * 15 + ["south"] * 25
SMALL = {"method": "idp-sgd", "steps": 3, "expected_batch_size": 8}
PUBLIC = {"owners": OWNERS, "budgets": BUDGETS}


def examples(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).uniform(-1, 1, (COUNT, 3))
    return X, np.where(X[:, 0] > 0, "yes", "no")


def classifier(**given) -> PrivateClassifier:
    return PrivateClassifier((4,), **(SMALL | {"classes": ["yes", "no"]} | given))


def regressor(**given) -> PrivateRegressor:
    return PrivateRegressor(**(SMALL | {"target_range": (0, 10)} | given))


def seeded(estimator, X, y, **given):
    """Fitted with its seed, which is not private."""
    with pytest.warns(UserWarning, match="random_state=0: .* can remove the noise"):
        return estimator.set_params(random_state=0).fit(X, y, **(PUBLIC | given))


def test_it_learns_and_keeps_every_budget():
    cases = load_breast_cancer()
    names = np.where(cases.target == 0, "clinic", "screening")
    held = {"clinic": {0: 1.0}, "screening": {1: 1.0}}
    ranges = [(0, 1.1 * largest) for largest in LARGEST]
    estimator = PrivateClassifier(classes=[0, 1], ranges=ranges, class_shares=held, steps=60)
    allowed = {"budgets": {"clinic": 2.0, "screening": 8.0}, "delta": 1e-5}
    seeded(estimator, cases.data[::2], cases.target[::2], owners=names[::2], **allowed)
    assert estimator.score(cases.data[1::2], cases.target[1::2]) > 0.9
    assert 0 < estimator.spent_["clinic"] <= 2.0
    assert 0 < estimator.spent_["screening"] <= 8.0
    assert estimator.ledger_.steps == estimator.plan_.steps == 60
    np.testing.assert_allclose(estimator.predict_proba(cases.data[:5]).sum(axis=1), 1)


def test_a_regressor_learns_in_the_units_of_the_target():
    X = np.random.default_rng(0).uniform(-1, 1, (1000, 3))
    y = 5 + 4 * X[:, 0]
    estimator = regressor(method="auto", model=(), steps=60, expected_batch_size=100)
    allowed = {"budgets": {"north": 4.0, "south": 8.0}, "delta": 1e-5}
    seeded(estimator, X, y, owners=["north", "south"] * 500, **allowed)
    assert estimator.score(X, y) > 0.8
    assert np.abs(estimator.predict([[1, 0, 0], [-1, 0, 0]]) - [9, 1]).max() < 2
    assert list(estimator.spent_) == ["north", "south"]


def test_training_is_that_of_a_study():
    """One builder: parameters are those of the same study trained by hand, to the bit."""
    X, y = examples()
    estimator = seeded(classifier(), X, y)
    data = estimator._study_data(X, y, Owners.from_labels(OWNERS, BUDGETS))
    plan = PlanConfig(variant="sample", steps=3, expected_batch_size=8, clipping_threshold=0.1)
    config = TrainingConfig(IDP_SGD, plan, 0.08, learning_rate_unit="noise")
    study = Study("s", "s", "{}", config, "mlp", lambda _: data, estimator._network)
    built = build(study, data, plan_once(config, data.owners.table))
    fit(built.trainer, TrainingState.start(built.trainer, built.model, built.optimizer, SeededSource(0)))
    for mine, its in zip(built.model.parameters(), estimator.model_.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_by_default_randomness_is_secure_and_no_warning_is_given():
    X, y = examples()
    first, second = (classifier().fit(X, y, **PUBLIC) for _ in range(2))
    assert not np.array_equal(first.predict_proba(X), second.predict_proba(X))


def test_what_is_public_does_not_depend_on_the_examples():
    """But for the model: plan, spending, classes, and what the ledger says of them."""
    X, y = examples()
    other = np.full_like(X, 0.5), np.full_like(y, "no")  # one class alone, and no spread
    one, two = seeded(classifier(), X, y), seeded(classifier(), *other)
    assert one.plan_ == two.plan_
    assert one.spent_ == two.spent_
    assert one.classes_.tolist() == two.classes_.tolist() == ["no", "yes"]
    assert one.n_features_in_ == two.n_features_in_
    assert not np.array_equal(one.predict_proba(X), two.predict_proba(X))


def test_inputs_outside_their_ranges_are_refused_in_training_and_brought_to_the_ends_in_prediction():
    X, y = examples()
    estimator = seeded(classifier(), X, y)
    np.testing.assert_array_equal(estimator.predict_proba(X * 1e6), estimator.predict_proba(np.sign(X)))
    before = estimator.predict_proba(X)
    np.testing.assert_array_equal(estimator.set_params(ranges=(0, 1)).predict_proba(X), before)  # until the next fit
    with pytest.raises(InvalidArgumentError, match=r"X\[:, 0\]: \d+ of 40 values lie outside \[-1, 1\]; widen ranges"):
        classifier().fit(X * 2, y, **PUBLIC)


def test_ranges_scale_columns_to_what_the_model_reads():
    X, y = examples()
    plain = seeded(classifier(), X, y).predict_proba(X)
    for ranges, moved in [((0, 4), 2 * X + 2), ([(-1, 1), (-2, 2), (-4, 4)], X * [1, 2, 4])]:
        np.testing.assert_allclose(seeded(classifier(ranges=ranges), moved, y).predict_proba(moved), plain, atol=1e-5)


def test_models_of_ones_own():
    X, y = examples()

    def linear(inputs: int, outputs: int, *, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs)

    estimator = seeded(classifier(), X, y).set_params(model=linear)
    assert isinstance(seeded(estimator, X, y).model_, nn.Linear)
    with pytest.raises(InvalidArgumentError, match=r"model: it returned int; return a torch\.nn\.Module"):
        classifier().set_params(model=lambda *_, seed: seed).fit(X, y, **PUBLIC)


def test_class_shares_are_declared_or_counted_under_the_budgets():
    X, y = examples()
    declared = {"north": {"yes": 0.5, "no": 0.5}, "south": {"no": 1.0}}
    plain = seeded(classifier(method="auto"), X, y)
    told = seeded(classifier(method="auto", class_shares=declared), X, y)
    assert (plain.plan_.variant, told.plan_.variant) == ("fair", "scale")  # the classes of north are held by south too
    assert not np.array_equal(told.predict_proba(X), plain.predict_proba(X))
    counts = {"owners": ["north"] * 1500 + ["south"] * 1500}
    counted = seeded(
        classifier(method="auto", count_classes=True), np.resize(X, (3000, 3)), np.resize(y, 3000), **counts
    )
    assert counted.plan_.count is not None
    assert counted.ledger_.history.counts is not None
    assert counted.spent_["north"] <= 1.0
    with pytest.raises(InvalidArgumentError, match="class_shares='east': there is no such owner"):
        classifier(class_shares={"east": {"no": 1.0}}).fit(X, y, **PUBLIC)


def test_a_fitted_estimator_can_be_kept():
    X, y = examples()
    estimator = seeded(classifier(), X, y)
    written = pickle.dumps(estimator)
    kept = pickle.loads(written)
    assert not any(row.astype(kind).tobytes() in written for row in X for kind in (np.float64, np.float32))
    assert (
        estimator.model_[0].weight.detach().numpy()[0].tobytes() in written
    )  # the control: what it does hold is found
    assert kept.spent_ == estimator.spent_
    np.testing.assert_array_equal(kept.predict(X), estimator.predict(X))


SEARCHES = {
    "grid": lambda estimator, X, y, **given: GridSearchCV(estimator, {"steps": [2, 3]}, cv=2).fit(X, y, **given),
    "cross-validation": lambda estimator, X, y, **given: cross_val_score(estimator, X, y, cv=2, params=given or None),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_search_without_owners_fails_with_a_pointer_to_priced_tuning(search):
    with pytest.raises(ValueError, match=r"owners=None(.|\n)*inosgd tune --private"):
        search(classifier(), *examples())


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_search_that_passes_owners_on_fails_as_well(search):
    """scikit-learn hands fit parameters on, row by row, to every fold: each would spend all budgets."""
    with pytest.raises(ValueError, match=r"this is a clone(.|\n)*inosgd tune --private"):
        search(classifier(), *examples(), **PUBLIC)


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_metadata_routing_changes_nothing(search):
    with sklearn.config_context(enable_metadata_routing=True):
        with pytest.raises(UnsetMetadataPassedError, match="owners"):
            search(classifier(), *examples(), **PUBLIC)
        with pytest.raises(ValueError, match=r"this is a clone(.|\n)*inosgd tune --private"):
            search(classifier().set_fit_request(owners=True, budgets=True), *examples(), **PUBLIC)


def test_without_the_refusal_a_search_would_spend_the_budgets_many_times():
    """The control: folds are trained, and no ledger adds them up."""
    trained = []

    class Careless(PrivateClassifier):
        def _refuse_clone(self):
            trained.append(self)

    estimator = Careless((4,), classes=["no", "yes"], **SMALL)
    GridSearchCV(estimator, {"steps": [2, 3]}, cv=2).fit(*examples(), **PUBLIC)
    assert len(trained) == 5
    assert sum(each.spent_["north"] > 0.99 for each in trained) == 3  # the other folds have none of its examples


def test_a_clone_can_be_made_and_says_what_to_do():
    X, y = examples()
    estimator = seeded(classifier(), X, y)
    assert clone(estimator).get_params() == estimator.get_params()
    with pytest.raises(InvalidArgumentError, match="for a single training, construct a new estimator"):
        clone(clone(estimator)).fit(X, y, **PUBLIC)
    given = {f"privateclassifier__{name}": value for name, value in PUBLIC.items()}
    make_pipeline("passthrough", classifier()).fit(X, y, **given)  # one training, without a clone


X, Y = examples()
WRONG = [
    (lambda: classifier().fit(X, Y), "owners=None: a private estimator is fitted by"),
    (lambda: classifier().fit(X, Y, owners=OWNERS), "budgets=None"),
    (
        lambda: classifier().fit(X, Y, owners=OWNERS, budgets={"north": 1, "south": 8}),
        "give Budgets, or a common delta",
    ),
    (lambda: classifier().fit(X, Y, owners=OWNERS[1:], budgets=BUDGETS), r"len\(examples\)=40, len\(owners\)=39"),
    (lambda: classifier(classes=None).fit(X, Y, **PUBLIC), "classes=None: name all classes"),
    (lambda: classifier(classes=["no"]).fit(X, Y, **PUBLIC), "1 class is named; name at least two"),
    (lambda: classifier(classes=["no", "no"]).fit(X, Y, **PUBLIC), "a class appears twice"),
    (lambda: classifier(classes=["no", "maybe"]).fit(X, Y, **PUBLIC), "y: 'yes' is none of the classes"),
    (lambda: classifier(ranges=[(0, 1), (0, 1)]).fit(X, Y, **PUBLIC), "or one for each of 3"),
    (lambda: classifier(method="magic").fit(X, Y, **PUBLIC), "method='magic': choose one of"),
    (lambda: classifier(random_state=0.5).fit(X, Y, **PUBLIC), "random_state=0.5: give a whole number"),
    (lambda: regressor(model=3).fit(X, X[:, 0] + 2, **PUBLIC), "model=3: give hidden widths such as"),
    (lambda: regressor(model=nn.Linear(3, 1)).fit(X, X[:, 0] + 2, **PUBLIC), "a function that returns a new module"),
    (lambda: regressor(target_range=None).fit(X, X[:, 0], **PUBLIC), "target_range=None: give the public range"),
    (lambda: regressor().fit(X, X[:, 0], **PUBLIC), r"y: \d+ of 40 values lie outside \[0, 10\]; widen target_range"),
    (lambda: classifier().fit(DataLoader(TensorDataset(torch.zeros(3, 3))), Y, **PUBLIC), "X: a DataLoader; give an"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:25] for _, message in WRONG])
def test_errors(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


def test_an_owner_without_a_budget():
    with pytest.raises(UnknownOwnerError, match="'north' owns 15 examples and has no budget"):
        classifier().fit(X, Y, owners=OWNERS, budgets={"south": BUDGETS["south"]})


def test_units_of_several_rows_are_protected_as_a_whole(engine_tries_models):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (90, 3))
    people = rng.integers(0, 30, 90)
    owners = np.where(people % 2 == 0, "a", "b")
    estimator = PrivateClassifier(classes=(0, 1), steps=3, expected_batch_size=8)
    estimator.fit(
        inputs,
        (inputs[:, 0] > 0).astype(int),
        owners=owners,
        budgets={"a": 2.0, "b": 8.0},
        delta=1e-3,
        units=people,
        unit_name="person",
        max_rows=2,
    )
    assert estimator.plan_.table.unit == "person"
    assert estimator.plan_.table.sizes.sum() == len(np.unique(people))
    assert max(estimator.spent_.values()) <= 8.0
