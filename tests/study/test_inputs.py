"""PyTorch users' own models and data sets: tables, images, text, sequences, tuples and dictionaries of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from inosgd import INO_SGD, Owners, PlanConfig, SeededSource, Trainer, TrainingState, fit, make_plan, supervised

COUNT = 24
LABELS = ["hospital", "clinic"] * (COUNT // 2)
TARGETS = torch.arange(COUNT) % 2


def random(*shape: int) -> torch.Tensor:
    return torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(0))


class Reader(nn.Module):
    """Reads text: an embedding, an LSTM and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(30, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(symbols))[0][:, -1])


class TwoInputs(nn.Module):
    """Reads numbers and an image of the same example."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.image, self.head = nn.Linear(3, 4), nn.Conv2d(1, 2, 3), nn.Linear(4 + 2 * 4, 2)

    def forward(self, numbers: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.numbers(numbers), self.image(image).flatten(1)], 1).tanh())


class Sequences(nn.Module):
    """One score per place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(sequence)[0]).transpose(1, 2)


class Records(Dataset):
    """A data set that yields a dictionary per example, as tokenisers do."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict:
        return {"numbers": random(3)[index], "image": random(1, 4, 4)[index], "label": int(TARGETS[index])}


def of_tuple(model: nn.Module, batch) -> torch.Tensor:
    (numbers, image), targets = batch
    return F.cross_entropy(model(numbers, image), targets, reduction="none")


def of_dictionary(model: nn.Module, batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["numbers"], batch["image"]), batch["label"], reduction="none")


SYMBOLS = torch.randint(0, 30, (COUNT, 6), generator=torch.Generator().manual_seed(1))
CROSS_ENTROPY = supervised(F.cross_entropy)
CASES = {
    "table": (lambda: nn.Linear(5, 2), (random(5), TARGETS), CROSS_ENTROPY),
    "image": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (random(3, 4, 4), TARGETS),
              CROSS_ENTROPY),
    "text": (Reader, (SYMBOLS, TARGETS), CROSS_ENTROPY),
    "a target per place": (Sequences, (random(5, 3), TARGETS[:, None].expand(-1, 5)), CROSS_ENTROPY),
    "tuple": (TwoInputs, ((random(3), random(1, 4, 4)), TARGETS), of_tuple),
    "dictionary": (TwoInputs, {"numbers": random(3), "image": random(1, 4, 4), "label": TARGETS}, of_dictionary),
    "dataset of dictionaries": (TwoInputs, Records(), of_dictionary),
}  # fmt: skip


def trained(name: str, build=None) -> tuple[nn.Module, TrainingState]:
    make, examples, losses = CASES[name]
    torch.manual_seed(0)
    model = (build or make)()
    owners = Owners.from_labels(LABELS, {"hospital": 2.0, "clinic": 50.0}, delta=1e-5)
    plan = make_plan(
        owners.table, PlanConfig(steps=2, variant="scale", expected_batch_size=8, clipping_threshold=1.0), verify=False
    )
    trainer = Trainer(plan, owners, examples, losses, INO_SGD)
    state = TrainingState.start(trainer, model, torch.optim.Adam(model.parameters()), SeededSource(0))
    return model, fit(trainer, state)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_input_trains(name):
    torch.manual_seed(0)
    before = nn.utils.parameters_to_vector(CASES[name][0]().parameters()).detach()
    model, state = trained(name)
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.isfinite(after).all()
    assert (after != before).all()
    assert (state.ledger.spent() <= state.ledger.table.epsilons).all()


def test_the_same_examples_in_another_form_train_the_same():
    forms = [trained(name)[0] for name in ("tuple", "dictionary", "dataset of dictionaries")]
    vectors = [nn.utils.parameters_to_vector(model.parameters()).detach() for model in forms]
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])
