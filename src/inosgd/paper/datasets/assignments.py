"""The 14 assignments of data to owners in the paper's appendix D.1.1, as rows of data.

`inosgd.paper.datasets.assigning.assign` carries them out. What the paper states is in the rows; what it leaves open and
we chose is said in ``ours``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inosgd.paper.datasets import cardiotocography, chest_xray, names
from inosgd.paper.datasets.cifar_classes import CIFAR_10, CIFAR_100, FISH, VEHICLES

DELTA = 1e-5


@dataclass(frozen=True)
class Group:
    """A kind of data, some classes, and the budget of those who hold it."""

    name: str
    classes: tuple[str, ...]
    epsilon: float


@dataclass(frozen=True)
class Spread:
    """Every example is its own owner, with a budget drawn around that of its group.

    Attributes:
        distribution: ``uniform``, within ``width`` of the group's epsilon, or ``normal``, with standard deviation
            ``width``.
        width: See there.
        smallest: A draw below it is drawn again.
    """

    distribution: str
    width: float
    smallest: float = 0.0


@dataclass(frozen=True)
class Assignment:
    """Who holds what, and what they allow.

    Attributes:
        name: The paper's abbreviation.
        description: One sentence on who owns what.
        data_sets: The data sets that it can be carried out on, the paper's first.
        groups: Kinds of data with their budgets. Each has one owner, unless ``spread`` is given.
        random_classes: The classes are dealt out among the groups anew for every seed.
        overlap: The share of each owner's examples that comes from the classes of the others.
        flipped: The share of training examples whose label is replaced by another one.
        spread: Every example is its own owner.
        per_class: So many training examples are drawn from each class, anew for every seed.
        delta: The delta of every owner.
        ours: What the paper leaves open and we chose.
    """

    name: str
    description: str
    data_sets: tuple[str, ...]
    groups: tuple[Group, ...]
    random_classes: bool = False
    overlap: float = 0.0
    flipped: float = 0.0
    spread: Spread | None = None
    per_class: int | None = None
    delta: float = DELTA
    ours: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes that are assigned, group by group."""
        return tuple(label for group in self.groups for label in group.classes)


def _one_class_each(classes: tuple[str, ...], first: float, last: float) -> tuple[Group, ...]:
    budgets = np.linspace(first, last, len(classes)).tolist()
    return tuple(Group(label, (label,), epsilon) for label, epsilon in zip(classes, budgets, strict=True))


def _numbered(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    return tuple(Group(f"owner {row}", group.classes, group.epsilon) for row, group in enumerate(groups, start=1))


_CIFAR_10 = ("cifar-10", "cifar-10-embeddings")
_CIFAR_100_FV = ("cifar-100", "fish-vehicles-embeddings")
_TENTHS = _one_class_each(CIFAR_10, 0.5, 5.0)
_FISH_AND_VEHICLES = (Group("fish", FISH, 1.0), Group("vehicles", VEHICLES, 5.0))
_OWN_SPLIT = "a fifth of each class is held out: the data come without a split"
_OVERLAP = (
    "budgets are those of CM; what an owner gives away goes to all others in equal shares, so that owners keep their "
    "sizes; held-out examples count for the main holder of their class"
)

ASSIGNMENTS = {
    assignment.name: assignment
    for assignment in (
        Assignment(
            "CA",
            "cardiotocograms: pathologic epsilon 3, suspect 4, normal 5",
            ("cardiotocography",),
            (
                Group("pathologic", (cardiotocography.CLASSES[2],), 3.0),
                Group("suspect", (cardiotocography.CLASSES[1],), 4.0),
                Group("normal", (cardiotocography.CLASSES[0],), 5.0),
            ),
            ours=_OWN_SPLIT,
        ),
        Assignment(
            "PN",
            "chest X-rays: pneumonia, bacterial or viral, epsilon 0.5, normal 5",
            ("chest-xray", "chest-xray-embeddings"),
            (
                Group("normal", chest_xray.CLASSES[:1], 5.0),
                Group("pneumonia", chest_xray.CLASSES[1:], 0.5),
            ),
            per_class=1341,
            ours="where a class has fewer than 1,341 examples, as many as it has are drawn from each class",
        ),
        Assignment(
            "MN",
            "handwritten digits: 0-4 epsilon 0.1, 5-9 epsilon 1",
            ("mnist",),
            (
                Group("digits 0-4", ("0", "1", "2", "3", "4"), 0.1),
                Group("digits 5-9", ("5", "6", "7", "8", "9"), 1.0),
            ),
        ),
        Assignment("CM", "CIFAR-10, a class each: epsilon 0.5, 1, ... 5", _CIFAR_10, _TENTHS),
        Assignment(
            "CL", "CIFAR-10, a class each: epsilon 6, 7, ... 15", _CIFAR_10, _one_class_each(CIFAR_10, 6.0, 15.0)
        ),
        Assignment(
            "CR",
            "CIFAR-10, a random class each: epsilon 0.5, 1, ... 5",
            _CIFAR_10,
            _numbered(_TENTHS),
            random_classes=True,
            ours="no class is held by two owners",
        ),
        Assignment(
            "CS",
            "CIFAR-10, every example its own owner: epsilon within 0.25 of 0.5, 1, ... 5 by class",
            _CIFAR_10,
            _TENTHS,
            spread=Spread("uniform", 0.25),
            ours="delta is 1e-5; budgets are drawn anew for every seed",
        ),
        Assignment(
            "COL",
            "CIFAR-10, nine tenths of a class each and a tenth of others: epsilon 0.5, 1, ... 5",
            _CIFAR_10,
            _TENTHS,
            overlap=0.1,
            ours=_OVERLAP,
        ),
        Assignment(
            "COM",
            "CIFAR-10, seven tenths of a class each and three tenths of others: epsilon 0.5, 1, ... 5",
            _CIFAR_10,
            _TENTHS,
            overlap=0.3,
            ours=_OVERLAP,
        ),
        Assignment(
            "CH", "CIFAR-100, a class each: epsilon 1 to 10", ("cifar-100",), _one_class_each(CIFAR_100, 1.0, 10.0)
        ),
        Assignment(
            "CF", "CIFAR-100: five kinds of fish epsilon 1, five of vehicles 5", _CIFAR_100_FV, _FISH_AND_VEHICLES
        ),
        Assignment(
            "CFS",
            "CIFAR-100, every example its own owner: epsilon around 1 (fish) or 5 (vehicles)",
            _CIFAR_100_FV,
            _FISH_AND_VEHICLES,
            spread=Spread("normal", 0.5, smallest=0.1),
            ours="delta is 1e-5; budgets are drawn anew for every seed; a draw below 0.1, or negative, is drawn again",
        ),
        Assignment(
            "CFN",
            "CIFAR-100: fish epsilon 1, vehicles 5, a tenth of the labels flipped",
            _CIFAR_100_FV,
            _FISH_AND_VEHICLES,
            flipped=0.1,
            ours="exactly a tenth of the training examples get one of the nine other labels, anew for every seed; "
            "owners stay, and held-out labels are right",
        ),
        Assignment(
            "SU",
            "surnames: Russian, the majority, epsilon 3, those of 17 other languages 2",
            ("names",),
            (
                Group("majority", ("Russian",), 3.0),
                Group("others", tuple(language for language in names.LANGUAGES if language != "Russian"), 2.0),
            ),
            ours=_OWN_SPLIT,
        ),
    )
}
