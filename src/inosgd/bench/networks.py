"""Networks of transformers, peft, timm and torchvision whose steps are measured: small, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from inosgd._extras import require
from inosgd.bench.packages import imported
from inosgd.gradients import replace_batchnorm

VOCABULARY = 1000
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
_BERT_MINI = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "num_labels": 10,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_GPT2 = {
    "n_embd": 128,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
}
_LLAMA = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 352,
}


class Logits(nn.Module):
    """From word numbers to the logits of a model of transformers, with classes in the second dimension."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """For each example, or for each of its places."""
        logits: torch.Tensor = self.model(input_ids=words).logits
        return logits.movedim(-1, 1)


def _transformer(name: str, kind: str, options: dict[str, Any]) -> nn.Module:
    require("models", "transformers")
    package = imported("transformers")
    made: nn.Module = getattr(package, f"{name}{kind}")(getattr(package, f"{name}Config")(**_TOKENS, **options))
    return made


def _bert_mini() -> nn.Module:
    return Logits(_transformer("Bert", "ForSequenceClassification", _BERT_MINI))


def _lora() -> nn.Module:
    require("models", "peft")
    peft, base = imported("peft"), _transformer("Bert", "ForSequenceClassification", _BERT_MINI)
    return Logits(peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=8)))


def _timm(name: str, **options: Any) -> nn.Module:
    require("models", "timm", "torchvision")
    made: nn.Module = imported("timm").create_model(name, num_classes=10, **options)
    return replace_batchnorm(made)


def _tokens_frozen() -> nn.Module:
    """The same with class token and positions as they are: they are parameters of the network and of no layer."""
    made: Any = _timm("vit_tiny_patch16_224", img_size=64)
    for parameter in (made.cls_token, made.pos_embed):
        parameter.requires_grad_(False)
    return made  # type: ignore[no-any-return]


def _seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().train()


_BUILDS: dict[str, Callable[[], nn.Module]] = {
    "vit-tiny": partial(_timm, "vit_tiny_patch16_224", img_size=64),
    "vit-tiny-frozen-tokens": _tokens_frozen,
    "bert-mini": _bert_mini,
    "gpt2-tiny": lambda: Logits(_transformer("GPT2", "LMHeadModel", _GPT2)),
    "llama-tiny": lambda: Logits(_transformer("Llama", "ForCausalLM", _LLAMA)),
    "lora-bert-mini": _lora,
    "mobilenetv3-small": partial(_timm, "mobilenetv3_small_100"),
    "convnext-atto": partial(_timm, "convnext_atto"),
}

NETWORKS: dict[str, Callable[..., nn.Module]] = {name: partial(_seeded, build) for name, build in _BUILDS.items()}
"""By name, a function of the keyword ``seed``."""
