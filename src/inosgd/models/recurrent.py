"""LS: the character LSTM of the paper, Embedding - LSTM - Linear.

A name is the UTF-8 bytes of its letters (symbols 0 to 255) between a begin (257) and an end (258), filled up with
padding (256) to a common length, as `inosgd.paper.datasets.names` writes it. Padding and privacy:

    The state is taken at a name's last real symbol. Names are read forwards, so with padding *behind* a name its
    scores, loss and gradient are the same however much padding there is. With padding *in front* the last real symbol
    stands at the last place, and the length that all names are filled up to must be a constant of the data.

    The paper does not say which state it takes. Its authors' code takes the one at the last *place*, after any
    padding behind. If batches are then padded to their own longest name, as in the tutorial that the code follows, one
    long name moves the gradients of all others, and no clipping bounds what one example does.
"""

from __future__ import annotations

import torch
from torch import nn

from inosgd import _validate
from inosgd.models._seeding import initialised_from

SYMBOLS = 259
PADDING = 256


class SequenceClassifier(nn.Module):
    """Class scores from the LSTM's state at the last real symbol of a sequence.

    Attributes:
        padding: The symbol that fills sequences up; None if there is none. A sequence of nothing but padding is read
            as one padding symbol.
    """

    def __init__(self, symbols: int, classes: int, embedding: int, hidden: int, padding: int | None) -> None:
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Scores of (examples, classes) for symbols of (examples, places)."""
        states: torch.Tensor = self.lstm(self.embedding(sequences))[0]
        scores: torch.Tensor = self.head(self._last(states, sequences))
        return scores

    def _last(self, states: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
        if self.padding is None:
            return states[:, -1]
        places = torch.arange(sequences.shape[1], device=sequences.device)
        last = (places * (sequences != self.padding)).amax(1)
        return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)


def character_lstm(classes: int = 18, *, seed: int) -> SequenceClassifier:
    """LS: 259 symbols embedded in 64 dimensions, an LSTM of 128 (its gates have 4 x 128 = 512), and a linear layer."""
    return sequence_classifier(SYMBOLS, classes, embedding=64, hidden=128, padding=PADDING, seed=seed)


def sequence_classifier(
    symbols: int, classes: int, *, embedding: int, hidden: int, padding: int | None, seed: int
) -> SequenceClassifier:
    """An LSTM over symbols 0 to ``symbols`` - 1, of which ``padding`` may be one."""
    _validate.whole(1, symbols=symbols, classes=classes, embedding=embedding, hidden=hidden)
    if padding is not None:
        _validate.whole(0, padding=padding)
        if padding >= symbols:
            raise _validate.fail("padding", padding, f"give one of the symbols 0 to {symbols - 1}, or None")
    with initialised_from(seed):
        return SequenceClassifier(symbols, classes, embedding, hidden, padding)
