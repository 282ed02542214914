"""Data: readers of public data sets and of what users bring, and who owns which example.

>>> from inosgd.paper.datasets import ASSIGNMENTS, assign, synthetic
>>> data = synthetic(ASSIGNMENTS["CF"], "fish-vehicles-embeddings")
>>> assigned = assign(ASSIGNMENTS["CF"], data, seed=0)
>>> dict(zip(assigned.owners.table.names, assigned.owners.table.sizes.tolist()))
{'fish': 60, 'vehicles': 60}

With files, ``load("fish-vehicles-embeddings", folder)`` takes the place of ``synthetic``, and
``model_inputs(data.train, assigned.train_rows)`` is what a model gets.
"""

from inosgd.data.files import MissingDataError
from inosgd.data.mapped import MappedExamples
from inosgd.data.parquet import ParquetExamples
from inosgd.paper.datasets.assigning import AssignedExamples, assign
from inosgd.paper.datasets.assignments import ASSIGNMENTS, Assignment, Group, Spread
from inosgd.paper.datasets.catalogue import CATALOGUE, load
from inosgd.paper.datasets.embeddings import load_npz
from inosgd.paper.datasets.labelled import DataSet, LabelledExamples, model_inputs
from inosgd.paper.datasets.synthetic import synthetic

__all__ = [
    "ASSIGNMENTS",
    "CATALOGUE",
    "AssignedExamples",
    "Assignment",
    "DataSet",
    "Group",
    "LabelledExamples",
    "MappedExamples",
    "MissingDataError",
    "ParquetExamples",
    "Spread",
    "assign",
    "load",
    "load_npz",
    "model_inputs",
    "synthetic",
]
