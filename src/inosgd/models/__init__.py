"""Models: the paper's by its abbreviations (`MODELS`), and small general ones for any data."""

from inosgd.models.catalogue import MODELS, ModelFactory
from inosgd.models.general import cnn, lstm, mlp
from inosgd.models.paper_cnn import cifar_cnn, mnist_cnn
from inosgd.models.perceptron import hidden_head, linear_head, paper_mlp, perceptron
from inosgd.models.recurrent import SequenceClassifier, character_lstm
from inosgd.models.residual import resnet18
from inosgd.models.transformer import small_transformer

__all__ = [
    "MODELS",
    "ModelFactory",
    "SequenceClassifier",
    "character_lstm",
    "cifar_cnn",
    "cnn",
    "hidden_head",
    "linear_head",
    "lstm",
    "mlp",
    "mnist_cnn",
    "paper_mlp",
    "perceptron",
    "resnet18",
    "small_transformer",
]
