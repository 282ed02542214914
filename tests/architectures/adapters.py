"""Adapters of peft on small models of transformers: the base is frozen, what is added is trained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from inosgd.bench.packages import imported
from tests.architectures.configuration import (
    Configuration,
    Losses,
    distances,
    images,
    next_words,
    padding,
    words,
)
from tests.architectures.language import _BERT, _GPT2, _IMAGE, _LLAMA, _T5, WORDS, transformer

_TEXT = words()
_BASES: dict[str, tuple[str, str, dict[str, Any], str, Callable[[int], Any], Losses]] = {
    "BERT": ("Bert", "ForSequenceClassification", _BERT, "SEQ_CLS", words(attention_mask=padding()), distances),
    "GPT-2": ("GPT2", "LMHeadModel", _GPT2, "CAUSAL_LM", _TEXT, next_words),
    "Llama": ("Llama", "ForCausalLM", _LLAMA, "CAUSAL_LM", _TEXT, next_words),
    "OPT": (
        "OPT",
        "ForCausalLM",
        {**_BERT, "ffn_dim": 24, "word_embed_proj_dim": 16},
        "CAUSAL_LM",
        _TEXT,
        next_words,
    ),
    "T5": (
        "T5",
        "ForConditionalGeneration",
        _T5,
        "SEQ_2_SEQ_LM",
        words(decoder_input_ids=lambda count: torch.randint(3, WORDS, (count, 5))),
        distances,
    ),
    "ViT": (
        "ViT",
        "ForImageClassification",
        _IMAGE,
        "",
        lambda count: {"pixel_values": images(16)(count)},
        distances,
    ),
}

_Adapter = tuple[str, str, dict[str, Any]]
_ADAPTERS: list[_Adapter] = [
    ("LoRA", "BERT", {"r": 2}),
    ("LoRA", "GPT-2", {"r": 2, "fan_in_fan_out": True}),
    ("LoRA", "Llama", {"r": 2, "target_modules": "all-linear"}),
    ("LoRA", "OPT", {"r": 2}),
    ("LoRA", "T5", {"r": 2}),
    ("LoRA", "ViT", {"r": 2, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]}),
    ("LoRA with dropout", "BERT", {"r": 2, "lora_dropout": 0.1}),
    ("LoRA by rank-stabilised scale", "Llama", {"r": 4, "use_rslora": True}),
    ("LoRA with biases", "BERT", {"r": 2, "bias": "all"}),
    ("LoRA on embeddings", "Llama", {"r": 2, "target_modules": ["embed_tokens", "q_proj"]}),
    ("LoRA on a convolution", "ViT", {"r": 2, "target_modules": ["projection"]}),
    ("LoRA, embeddings saved", "GPT-2", {"r": 2, "fan_in_fan_out": True, "modules_to_save": ["wpe"]}),
    ("LoRA on a bfloat16 base", "GPT-2", {"r": 2, "fan_in_fan_out": True}),
    ("LoRA on a bfloat16 base", "Llama", {"r": 2}),
    ("DoRA", "BERT", {"r": 2, "use_dora": True}),
    ("DoRA", "Llama", {"r": 2, "use_dora": True}),
    ("IA3", "BERT", {}),
    ("IA3", "Llama", {}),
    ("IA3", "T5", {}),
    ("AdaLora", "BERT", {"total_step": 100, "init_r": 4, "target_r": 2}),
    ("LoHa", "BERT", {"r": 2, "target_modules": ["query", "value"]}),
    ("LoKr", "BERT", {"r": 2, "target_modules": ["query", "value"]}),
    ("OFT", "BERT", {"oft_block_size": 4, "target_modules": ["query", "value"]}),
    ("BOFT", "BERT", {"boft_block_size": 4, "target_modules": ["query", "value"]}),
    ("HRA", "BERT", {"r": 2, "target_modules": ["query", "value"]}),
    ("Vera", "Llama", {"r": 4, "target_modules": ["q_proj", "o_proj"]}),
    ("FourierFT", "BERT", {"n_frequency": 10, "target_modules": ["query", "value"]}),
    ("RandLora", "Llama", {"r": 4, "target_modules": ["q_proj", "o_proj"]}),
    ("VBLoRA", "BERT", {"r": 2, "num_vectors": 8, "vector_length": 4, "topk": 2, "target_modules": ["query", "value"]}),
    ("LNTuning", "BERT", {"target_modules": ["LayerNorm"]}),
    ("PromptTuning", "GPT-2", {"num_virtual_tokens": 3}),
    ("PromptTuning", "BERT", {"num_virtual_tokens": 3}),
    ("PromptEncoder", "GPT-2", {"num_virtual_tokens": 3, "encoder_hidden_size": 8}),
    ("PrefixTuning", "GPT-2", {"num_virtual_tokens": 3}),
    ("PrefixTuning", "Llama", {"num_virtual_tokens": 3}),
    ("AdaptionPrompt", "Llama", {"adapter_len": 3, "adapter_layers": 1}),
    ("Trainable tokens", "Llama", {"token_indices": list(range(3, 40)), "target_modules": ["embed_tokens"]}),
    ("Biases alone", "BERT", {}),
]


def _adapted(kind: str, base: str, options: dict[str, Any]) -> nn.Module:
    family, variant, sizes, task, _, _ = _BASES[base]
    model = transformer(family, variant, dict(sizes))
    if kind == "Biases alone":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        return model
    if "bfloat16" in kind:
        model = model.bfloat16()
    name = "TrainableTokens" if kind == "Trainable tokens" else kind.partition(" ")[0].partition(",")[0]
    peft = imported("peft")
    name = {"LoRA": "Lora", "DoRA": "Lora"}.get(name, name)
    config = getattr(peft, f"{name}Config")(**({"task_type": task} if task else {}), **options)
    made: nn.Module = peft.get_peft_model(model, config)
    return made


def configurations() -> dict[str, Configuration]:
    """By name."""
    return {
        f"peft: {kind} on {base}": Configuration(
            "peft", partial(_adapted, kind, base, options), _BASES[base][4], _BASES[base][5]
        )
        for kind, base, options in _ADAPTERS
    }
