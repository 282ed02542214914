"""Models of the studies."""

from inosgd.models.perceptron import perceptron

__all__ = ["perceptron"]
