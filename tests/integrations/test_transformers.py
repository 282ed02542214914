"""Hugging Face models and adapters, tiny and with random weights, are fine-tuned under two owners' budgets."""

from __future__ import annotations

import json
import math
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from inosgd import IDP_SGD, Owners, PlanConfig, SeededSource, make_plan
from inosgd.bench.packages import imported
from inosgd.errors import InvalidArgumentError
from inosgd.integrations.logging import log_public
from inosgd.integrations.transformers import (
    class_losses,
    documents,
    fine_tune,
    mean_loss,
    next_token_losses,
    save,
    trained_parameters,
)
from inosgd.training import Callback, TrainingState

WORDS, LENGTH, COUNT = 23, 9, 60
BASE = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
OWNERS = Owners.from_labels(["strict", "lenient"] * (COUNT // 2), {"strict": 2.0, "lenient": 8.0}, delta=1e-4)
PLAN = make_plan(
    OWNERS.table,
    PlanConfig(steps=6, variant="sample", expected_batch_size=16, clipping_threshold=1.0),
    verify=False,
)


def of(package: str, name: str):
    """Imported by the process that needs it, and not with this file: these packages take longer than torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that they import
        return getattr(imported(package), name)


transformers, peft = partial(of, "transformers"), partial(of, "peft")


def seeded(build, *arguments, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(*arguments, **options)


def gpt2(**options) -> nn.Module:
    config = transformers("GPT2Config")(n_embd=16, n_layer=1, n_head=2, n_positions=16, **BASE, **options)
    return seeded(transformers("GPT2LMHeadModel"), config)


def bert(kind: str = "BertForSequenceClassification") -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers("BertConfig")(**sizes, **BASE, num_labels=3, max_position_embeddings=16)
    return seeded(transformers(kind), config)


def lora(model: nn.Module, task: str, **options) -> nn.Module:
    return seeded(peft("get_peft_model"), model, peft("LoraConfig")(r=2, task_type=task, **options))


def texts() -> list[list[int]]:
    """Documents of 3 to 12 tokens that count upwards."""
    return [[3 + (start + place) % 20 for place in range(3 + start % 10)] for start in range(COUNT)]


def labelled() -> dict[str, torch.Tensor]:
    examples = documents(texts(), length=LENGTH, pad=0)
    return {**examples, "labels": torch.arange(COUNT) % 3}


def tuned(model: nn.Module, examples, losses=next_token_losses, callbacks: list[Callback] | None = None, **options):
    optimizer = torch.optim.AdamW(trained_parameters(model), lr=1e-2)
    return fine_tune(
        model,
        examples,
        OWNERS,
        PLAN,
        optimizer=optimizer,
        losses=losses,
        source=SeededSource(0),
        callbacks=callbacks or [],
        **options,
    )


def test_documents_have_one_length_and_padding_has_no_label():
    made = documents([[5, 6, 7], [8], []], length=2, pad=9)
    assert made["input_ids"].tolist() == [[5, 6], [8, 9], [9, 9]]
    assert made["attention_mask"].tolist() == [[1, 1], [1, 0], [0, 0]]
    assert made["labels"].tolist() == [[5, 6], [8, -100], [-100, -100]]


def test_the_loss_of_a_document_is_the_mean_that_the_model_itself_takes_of_it_alone():
    model, examples = gpt2().eval(), documents(texts()[:8], length=LENGTH, pad=0)
    losses = next_token_losses(model, examples)
    for row in range(8):
        one = {name: each[row : row + 1] for name, each in examples.items()}
        assert losses[row].item() == pytest.approx(model(**one).loss.item(), rel=1e-5)


def test_the_models_own_loss_weighs_documents_by_the_lengths_of_others():
    """The control: why labels are not given to the model."""
    model, examples = gpt2().eval(), documents(texts()[:8], length=LENGTH, pad=0)
    assert model(**examples).loss.item() != pytest.approx(next_token_losses(model, examples).mean().item(), rel=1e-3)


def test_a_document_without_a_next_token_has_loss_zero():
    losses = next_token_losses(gpt2().eval(), documents([[5], [5, 6]], length=4, pad=0))
    assert losses[0] == 0
    assert losses[1] > 0


def test_a_batch_may_be_empty():
    for model, losses, examples in (
        (gpt2(), next_token_losses, documents([[5, 6]], length=4, pad=0)),
        (bert(), class_losses, labelled()),
    ):
        assert losses(model, {name: each[:0] for name, each in examples.items()}).shape == (0,)


def test_labels_of_documents_and_of_tokens():
    examples = labelled()
    model = bert().eval()
    expected = F.cross_entropy(model(**{**examples, "labels": None}).logits, examples["labels"], reduction="none")
    assert torch.allclose(class_losses(model, examples), expected)
    tags = {**examples, "labels": torch.where(examples["attention_mask"] == 1, 2, -100)}
    model = bert("BertForTokenClassification").eval()
    one = {name: each[3:4] for name, each in tags.items()}
    assert class_losses(model, tags)[3].item() == pytest.approx(model(**one).loss.item(), rel=1e-5)


MODELS = {
    "LoRA on BERT": (lambda: lora(bert(), "SEQ_CLS"), labelled, class_losses),
    "LoRA on GPT-2": (
        lambda: lora(gpt2(), "CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True),
        lambda: documents(texts(), length=LENGTH, pad=0),
        next_token_losses,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_adapters_are_trained_logged_saved_and_loaded(name, tmp_path):
    build, data, losses = MODELS[name]
    model, examples, lines = build(), data(), tmp_path / "public.jsonl"
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = set(dict(model.named_parameters())) - {n for n, p in model.named_parameters() if not p.requires_grad}
    state = tuned(model, examples, losses, [log_public(lines, steps=3)])
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed
    assert changed <= trained
    assert {"a" if "lora_A" in key else "b" for key in changed if "lora" in key} == {"a", "b"}

    logged = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["step"] for line in logged] == [3, 6]
    assert 0 < logged[-1]["epsilon"]["strict"] <= 2.0 < logged[-1]["epsilon"]["lenient"] <= 8.0

    folder = save(state, tmp_path / "adapters")
    assert not (folder / "model.safetensors").exists(), "the base is not saved"
    told = json.loads((folder / "privacy.json").read_text())
    assert told["epsilon"] == logged[-1]["epsilon"]
    assert told["delta"] == {"strict": 1e-4, "lenient": 1e-4}
    base = bert() if "BERT" in name else gpt2()
    loaded = peft("PeftModel").from_pretrained(base, folder)
    assert mean_loss(loaded, examples, losses) == pytest.approx(mean_loss(model, examples, losses), rel=1e-6)


def test_evaluation_leaves_modes_alone_and_does_not_depend_on_blocks():
    model, examples = gpt2().train(), documents(texts(), length=LENGTH, pad=0)
    assert mean_loss(model, examples, rows=7) == pytest.approx(mean_loss(model, examples), rel=1e-5)
    assert model.training
    assert all(module.training for module in model.modules())
    assert mean_loss(model, examples) == pytest.approx(math.log(WORDS), rel=0.1)


def test_the_training_is_that_of_the_library(tmp_path):
    """Same bits as the Trainer that it is made of: the same sampling, noise and ledger."""
    from inosgd import INO_SGD, Trainer, fit

    build, data, losses = MODELS["LoRA on BERT"]
    one, other = build(), build()
    state = tuned(one, data(), losses)
    trainer = Trainer(PLAN, OWNERS, data(), losses, INO_SGD)
    optimizer = torch.optim.AdamW(trained_parameters(other), lr=1e-2)
    again = fit(trainer, TrainingState.start(trainer, other.train(), optimizer, SeededSource(0)))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in one.state_dict().items())
    assert state.ledger.spent().tolist() == again.ledger.spent().tolist()


def test_a_frozen_bfloat16_base_with_float32_adapters(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # some virtual machines announce AMX and lack it
    model = lora(gpt2().bfloat16(), "CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    state = tuned(model, documents(texts(), length=LENGTH, pad=0), method=IDP_SGD)
    assert state.step == PLAN.steps


def test_a_head_in_bfloat16_is_refused_by_name():
    """Peft trains a copy of the head in the type that it has."""
    with pytest.raises(
        InvalidArgumentError, match=r"classifier\.modules_to_save.* is torch\.bfloat16; train in float32"
    ):
        tuned(lora(bert().bfloat16(), "SEQ_CLS"), labelled(), class_losses)


def test_a_loader_is_refused():
    examples = documents(texts(), length=LENGTH, pad=0)
    loader = DataLoader(TensorDataset(*examples.values()), batch_size=4)
    with pytest.raises(InvalidArgumentError, match=r"DataLoader decides itself.*loader\.dataset"):
        tuned(gpt2(), loader)


def test_arguments_of_transformers_own_trainer_are_refused(tmp_path: Path):
    with pytest.raises(InvalidArgumentError, match=r"examples: a TrainingArguments .* torch optimizer"):
        tuned(gpt2(), transformers("TrainingArguments")(output_dir=str(tmp_path), use_cpu=True))


def test_what_has_no_save_pretrained_is_not_saved():
    state = tuned(lora(bert(), "SEQ_CLS"), labelled(), class_losses)
    state.model = nn.Linear(2, 2)
    with pytest.raises(InvalidArgumentError, match="Linear, has no save_pretrained"):
        save(state, "nowhere")


def test_a_whole_model_in_half_precision_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"is torch\.bfloat16; train in float32"):
        tuned(bert().bfloat16(), labelled(), class_losses)
