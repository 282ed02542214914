"""scikit-learn's own checks of estimators, with what they cannot know supplied: owners, budgets and classes."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.multiclass import check_classification_targets

from inosgd.integrations.sklearn import PrivateClassifier, PrivateRegressor

EXPECTED = {
    "check_fit2d_1sample": "batches of 4 cannot be drawn from one example, which the error says in words of its own",
}
"""Of the regressor; the classifier already refuses a single class."""


class Supplied:
    """What a user gives. Clones may be fitted, because the checks clone before they fit."""

    def fit(self, X, y):
        count = np.shape(X if hasattr(X, "shape") else np.asarray(X))[0]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "random_state=")
            return super().fit(X, y, owners=["one"] * count, budgets={"one": 1.0}, delta=1e-5)

    def _refuse_clone(self):
        pass

    def __sklearn_tags__(self):
        """Ranges are wide enough for the data of all checks, and noise is large: scores are tested elsewhere."""
        tags = super().__sklearn_tags__()
        (tags.regressor_tags or tags.classifier_tags).poor_score = True
        return tags


class CheckedClassifier(Supplied, PrivateClassifier):
    def _targets(self, y):
        check_classification_targets(y)
        named = PrivateClassifier(classes=np.unique(y))
        task, targets = named._targets(y)
        self.classes_ = named.classes_
        return task, targets


class CheckedRegressor(Supplied, PrivateRegressor):
    pass


SMALL = {"method": "dp-sgd", "ranges": (-1000, 1000), "steps": 2, "expected_batch_size": 4}
ESTIMATORS = [CheckedClassifier((), **SMALL), CheckedRegressor((), target_range=(-1000, 1000), **SMALL)]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda each: EXPECTED if is_regressor(each) else {})
def test_scikit_learns_checks(estimator, check):
    check(estimator)
