"""Fine-tuning of Hugging Face models, whole or by adapters of peft, under the individual budgets of owners.

    model = get_peft_model(GPT2LMHeadModel(config), LoraConfig(...))
    examples = documents(token_ids, length=64, pad=0)
    state = fine_tune(model, examples, owners, plan, optimizer=torch.optim.AdamW(trained_parameters(model), lr=1e-3))
    save(state, "adapters")

This is `inosgd.fit` with losses that suit these models, and nothing is subclassed: transformers' own ``Trainer`` draws
its batches by a ``DataLoader``, pads them to their longest example and takes gradients of a mean over the batch, each
of which voids the guarantee. What it does besides is a line here: ``callbacks=[log_public(...)]`` logs epsilons,
`mean_loss` evaluates, `save` writes adapters. Neither package is imported: any model will do that is called as theirs.

Guarantee:
    That of `inosgd.train_step` for the documents of ``examples``: what `save` writes is (epsilon_n, delta_n)-private
    for each row of owner n. The unit is a row: one document, cut to a constant length; or, if all that an author wrote
    is put into one row, one author. The base model is not trained on them; where it comes from public data, so is it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from inosgd import _validate
from inosgd.errors import InvalidArgumentError
from inosgd.examples import as_store
from inosgd.gradients import BookkeepingEngine, ExampleLosses, Examples, GradientEngine, trainable_parameters
from inosgd.gradients.engine import count_examples
from inosgd.gradients.outputs import inputs_and_targets, logits_of
from inosgd.integrations.logging import public_numbers
from inosgd.method import INO_SGD, Method
from inosgd.modes import evaluating
from inosgd.owners import Owners
from inosgd.plan import Plan
from inosgd.randomness import RandomSource, SecureSource
from inosgd.training import Callback, Trainer, TrainingState, fit

IGNORED = -100
"""The label of a place that does not count, as transformers has it."""


def documents(token_ids: Sequence[Sequence[int]], *, length: int, pad: int) -> dict[str, torch.Tensor]:
    """Documents as rows of one length: ``input_ids``, ``attention_mask``, and ``labels``, ignored in padding.

    Args:
        token_ids: By document, as any tokenizer gives them. Longer ones are cut.
        length: A public constant. The length of the longest document would tell of that document.
        pad: The token to fill up with; it is masked and has no loss.

    >>> documents([[5, 6, 7], [8]], length=2, pad=0)["labels"].tolist()
    [[5, 6], [8, -100]]
    """
    _validate.whole(2, length=length)
    cut = [torch.tensor(list(each)[:length], dtype=torch.long) for each in token_ids]
    rows = torch.full((len(cut), length), pad)
    mask = torch.zeros_like(rows)
    for row, tokens in enumerate(cut):
        rows[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return {"input_ids": rows, "attention_mask": mask, "labels": rows.masked_fill(mask == 0, IGNORED)}


def next_token_losses(model: nn.Module, examples: Examples) -> torch.Tensor:
    """For causal language models: the mean cross entropy of each document's next tokens, one loss per document.

    The mean is over the document's own places whose label is not -100; a document without any has loss 0. ``labels``
    are not given to the model, which would take the mean over all places of the batch, and let a document weigh by the
    lengths of the others.
    """
    inputs, labels = inputs_and_targets(examples, "labels")
    if len(labels) == 0:
        return _no_losses(model)
    logits = logits_of(model, inputs)[:, -labels.shape[1] :]  # without places that a prompt was tuned in
    return _means(logits[:, :-1], labels[:, 1:])


def class_losses(model: nn.Module, examples: Examples) -> torch.Tensor:
    """For classifiers of documents or tokens: cross entropy, as a mean over an example's own labelled places."""
    inputs, labels = inputs_and_targets(examples, "labels")
    if len(labels) == 0:
        return _no_losses(model)
    return _means(logits_of(model, inputs), labels)


def _no_losses(model: nn.Module) -> torch.Tensor:
    """Of an empty batch, which many of these models cannot pass."""
    return trained_parameters(model)[0].new_zeros(0)


def _means(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy, at least in float32, as a mean over an example's own places that count."""
    precise = logits.movedim(-1, 1).to(torch.promote_types(logits.dtype, torch.float32))
    each = functional.cross_entropy(precise, labels, ignore_index=IGNORED, reduction="none")
    return _summed(each) / _summed((labels != IGNORED).long()).clamp_min(1)


def _summed(values: torch.Tensor) -> torch.Tensor:
    return values.flatten(1).sum(1) if values.dim() > 1 else values


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What an optimizer is given: the parameters that are not frozen."""
    return list(trainable_parameters(model).values())


def fine_tune(
    model: nn.Module,
    examples: Any,
    owners: Owners,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer,
    losses: ExampleLosses = next_token_losses,
    method: Method = INO_SGD,
    engine: GradientEngine | None = None,
    source: RandomSource | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainingState:
    """Train what is not frozen of a model for all steps of the plan; see the guarantee of this module.

    Batches are Poisson samples of ``examples``, of any size, also empty ones.

    Args:
        model: Of transformers or peft, in training mode afterwards. It may be frozen in bfloat16 where it is not
            trained; what is trained has to be float32 or float64.
        examples: What `documents` makes, or a map-style data set of such dictionaries, all of one length. Never a
            ``DataLoader``.
        owners: Whose each example is.
        plan: For ``owners.table``.
        optimizer: For `trained_parameters`.
        losses: One loss per example.
        method: How a batch becomes a weighted sum.
        engine: How per-example gradients are computed; None for the default engine.
        source: Of all randomness; None for a secure one.
        callbacks: Called after every step, such as `inosgd.integrations.logging.log_public`.

    Raises:
        InvalidArgumentError: It says what to give instead.
    """
    for name, given in {"model": model, "examples": examples, "optimizer": optimizer}.items():
        if type(given).__module__.startswith("transformers.train"):
            raise InvalidArgumentError(
                f"{name}: a {type(given).__name__} of transformers draws batches and takes their mean by itself, which "
                "no budget covers; give the model, its examples and a torch optimizer"
            )
    trainer = Trainer(plan, owners, examples, losses, method, BookkeepingEngine() if engine is None else engine)
    model.train()
    return fit(
        trainer,
        TrainingState.start(trainer, model, optimizer, SecureSource() if source is None else source),
        callbacks=callbacks,
    )


@torch.no_grad()
def mean_loss(model: nn.Module, examples: Any, losses: ExampleLosses = next_token_losses, *, rows: int = 64) -> float:
    """The mean loss of examples in evaluation mode; exp of it is a perplexity.

    Sensitive if the examples are: it is exact. Evaluate on public examples, or keep the result.
    """
    store, total = as_store(examples), 0.0
    with evaluating(model):
        for block in torch.split(torch.arange(len(store)), rows):
            batch = store.take(block.numpy())
            total += float(losses(model, batch).double().sum()) * (count_examples(batch) > 0)
    return total / len(store)


def save(state: TrainingState, folder: str | Path) -> Path:
    """Write the result of a training: adapters or the whole model by ``save_pretrained``, and ``privacy.json``.

    The latter has the public numbers of the training (`inosgd.integrations.logging`): steps, epsilon by owner, noise
    scale, expected batch size. The result may be published if the source of randomness was a secure one.
    """
    folder = Path(folder)
    with state.result() as model:
        write: Any = getattr(model, "save_pretrained", None)
        if write is None:
            raise InvalidArgumentError(
                f"state: its model, {type(model).__name__}, has no save_pretrained; save its state_dict by safetensors"
            )
        write(folder)
    numbers = public_numbers(state)
    deltas = dict(zip(state.ledger.table.names, map(float, state.ledger.table.deltas), strict=True))
    text = json.dumps({**numbers, "delta": deltas}, indent=1, default=str)
    (folder / "privacy.json").write_text(text + "\n", encoding="utf-8")
    return folder
