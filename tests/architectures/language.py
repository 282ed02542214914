"""Models of transformers with random weights and a few hundred to a few thousand parameters each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from inosgd.bench.packages import imported
from tests.architectures.configuration import (
    CLASSES,
    WORDS,
    Configuration,
    Losses,
    distances,
    images,
    next_words,
    normal,
    padding,
    words,
)

_WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_NAMES = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": CLASSES}
_BERT = {**_WIDTH, **_NAMES, "max_position_embeddings": 32}
_LLAMA = {**_BERT, "num_key_value_heads": 1}
_GPT2 = {**_NAMES, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
_SEQ2SEQ = {
    **_NAMES,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 1,
}
_T5 = {
    **_NAMES,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
_WINDOWS = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "num_labels": CLASSES,
}
_IMAGE = {**_WIDTH, "image_size": 16, "patch_size": 8, "num_labels": CLASSES}
_WAVES = {
    **_WIDTH,
    "conv_dim": (8, 8),
    "conv_kernel": (5, 3),
    "conv_stride": (3, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "num_labels": CLASSES,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "layerdrop": 0.0,
}


def transformer(family: str, kind: str, options: dict[str, Any]) -> nn.Module:
    """A model of the family, such as ``BertForSequenceClassification``, by the options of its configuration."""
    package = imported("transformers")
    name, _, variant = family.partition("/")
    config = getattr(package, f"{name}{variant}Config")(**options)
    made: nn.Module = getattr(package, f"{name}{kind}")(config)
    return made


_TEXT = words()
_MASKED = words(attention_mask=padding())
_BOTH = words(decoder_input_ids=lambda count: torch.randint(3, WORDS, (count, 5)))
_PIXELS = {"pixel_values": images(16)}


def _named(**parts: Callable[[int], torch.Tensor]) -> Callable[[int], dict[str, torch.Tensor]]:
    return lambda count: {name: each(count) for name, each in parts.items()}


_CAUSAL, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"
_IMAGE_CLASSIFIER, _SEQUENCES = "ForImageClassification", "ForConditionalGeneration"

_MODELS: list[tuple[str, str, dict[str, Any], Callable[[int], Any], Losses]] = [
    ("Bert", _CLASSIFIER, _BERT, _MASKED, distances),
    ("Bert", "ForTokenClassification", _BERT, _MASKED, distances),
    ("Bert", "ForMaskedLM", _BERT, _TEXT, distances),
    ("Bert", "ForQuestionAnswering", {**_BERT, "num_labels": 2}, _TEXT, distances),
    ("Bert", "ForNextSentencePrediction", _BERT, _TEXT, distances),
    (
        "Bert",
        "ForMultipleChoice",
        _BERT,
        _named(input_ids=lambda count: torch.randint(3, WORDS, (count, 3, 7))),
        distances,
    ),
    ("Roberta", _CLASSIFIER, _BERT, _MASKED, distances),
    ("XLMRoberta", "ForTokenClassification", _BERT, _TEXT, distances),
    ("Electra", _CLASSIFIER, {**_BERT, "embedding_size": 8}, _TEXT, distances),
    ("Albert", _CLASSIFIER, {**_BERT, "embedding_size": 8}, _TEXT, distances),
    (
        "DistilBert",
        _CLASSIFIER,
        {**_NAMES, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 32},
        _MASKED,
        distances,
    ),
    ("Deberta", _CLASSIFIER, {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, _TEXT, distances),
    (
        "DebertaV2",
        _CLASSIFIER,
        {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
        _TEXT,
        distances,
    ),
    ("MPNet", _CLASSIFIER, _BERT, _TEXT, distances),
    ("ModernBert", _CLASSIFIER, {**_BERT, "cls_token_id": 1, "sep_token_id": 2}, _MASKED, distances),
    (
        "Funnel",
        _CLASSIFIER,
        {**_NAMES, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1]},
        words(8),
        distances,
    ),
    ("XLNet", _CLASSIFIER, {**_NAMES, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}, _TEXT, distances),
    ("FNet", _CLASSIFIER, {**_BERT}, _TEXT, distances),
    ("ConvBert", _CLASSIFIER, {**_BERT, "embedding_size": 16, "conv_kernel_size": 3}, _TEXT, distances),
    (
        "SqueezeBert",
        _CLASSIFIER,
        {**_BERT, "embedding_size": 16, **dict.fromkeys(("q_groups", "k_groups", "v_groups"), 2)},
        _TEXT,
        distances,
    ),
    ("GPT2", "LMHeadModel", _GPT2, _TEXT, next_words),
    ("GPT2", _CLASSIFIER, _GPT2, _TEXT, distances),
    (
        "GPTNeo",
        _CAUSAL,
        {
            **_NAMES,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 32,
        },
        _TEXT,
        next_words,
    ),
    ("GPTJ", _CAUSAL, {**_GPT2, "rotary_dim": 4}, _TEXT, next_words),
    ("GPTNeoX", _CAUSAL, _BERT, _TEXT, next_words),
    ("GPTBigCode", _CAUSAL, _GPT2, _TEXT, next_words),
    ("CodeGen", _CAUSAL, {**_GPT2, "n_head": 4, "rotary_dim": 4}, _TEXT, next_words),
    ("OPT", _CAUSAL, {**_BERT, "ffn_dim": 24, "word_embed_proj_dim": 16}, _MASKED, next_words),
    ("Bloom", _CAUSAL, {**_NAMES, "hidden_size": 16, "n_layer": 2, "n_head": 2}, _TEXT, next_words),
    ("Falcon", _CAUSAL, {**_BERT, "new_decoder_architecture": False}, _TEXT, next_words),
    ("Llama", _CAUSAL, _LLAMA, _MASKED, next_words),
    ("Llama", _CLASSIFIER, _LLAMA, _TEXT, distances),
    ("Mistral", _CAUSAL, {**_LLAMA, "sliding_window": 4}, _TEXT, next_words),
    ("Mixtral", _CAUSAL, {**_LLAMA, "num_local_experts": 3, "num_experts_per_tok": 2}, _TEXT, next_words),
    ("Qwen2", _CAUSAL, {**_LLAMA, "tie_word_embeddings": True}, _TEXT, next_words),
    (
        "Qwen2Moe",
        _CAUSAL,
        {
            **_LLAMA,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
        _TEXT,
        next_words,
    ),
    ("Qwen3", _CAUSAL, {**_LLAMA, "head_dim": 8}, _TEXT, next_words),
    ("Gemma", _CAUSAL, {**_LLAMA, "head_dim": 8}, _TEXT, next_words),
    ("Gemma2", _CAUSAL, {**_LLAMA, "head_dim": 8}, _TEXT, next_words),
    ("Gemma3/Text", _CAUSAL, {**_LLAMA, "head_dim": 8}, _TEXT, next_words),
    ("Phi", _CAUSAL, _BERT, _TEXT, next_words),
    ("Phi3", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("StableLm", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("Olmo", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("Olmo2", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("Granite", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("SmolLM3", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("Cohere", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("Starcoder2", _CAUSAL, _LLAMA, _TEXT, next_words),
    ("Mpt", _CAUSAL, {**_NAMES, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 32}, _TEXT, next_words),
    ("Mamba", _CAUSAL, {**_NAMES, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}, _TEXT, next_words),
    (
        "Mamba2",
        _CAUSAL,
        {
            **_NAMES,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": 1,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
        },
        words(8),
        next_words,
    ),
    ("Rwkv", _CAUSAL, {**_NAMES, "hidden_size": 16, "num_hidden_layers": 2, "context_length": 32}, _TEXT, next_words),
    ("RecurrentGemma", _CAUSAL, {**_LLAMA, "lru_width": 16, "num_hidden_layers": 3}, _TEXT, next_words),
    ("T5", _SEQUENCES, _T5, _BOTH, distances),
    (
        "T5",
        _CLASSIFIER,
        _T5,
        words(
            7, input_ids=lambda count: torch.cat([torch.randint(3, WORDS, (count, 6)), torch.full((count, 1), 2)], 1)
        ),
        distances,
    ),
    ("MT5", _SEQUENCES, {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, _BOTH, distances),
    ("Bart", _SEQUENCES, _SEQ2SEQ, _BOTH, distances),
    ("MBart", _SEQUENCES, _SEQ2SEQ, _BOTH, distances),
    ("Pegasus", _SEQUENCES, _SEQ2SEQ, _BOTH, distances),
    ("Marian", "MTModel", _SEQ2SEQ, _BOTH, distances),
    (
        "Whisper",
        _SEQUENCES,
        {**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 12},
        _named(input_features=normal(8, 20), decoder_input_ids=lambda count: torch.randint(3, WORDS, (count, 5))),
        distances,
    ),
    ("Wav2Vec2", _CLASSIFIER, _WAVES, _named(input_values=normal(120)), distances),
    ("Hubert", _CLASSIFIER, _WAVES, _named(input_values=normal(120)), distances),
    ("WavLM", _CLASSIFIER, {**_WAVES, "num_buckets": 8}, _named(input_values=normal(120)), distances),
    (
        "AST",
        "ForAudioClassification",
        {**_WIDTH, "num_mel_bins": 16, "max_length": 24, "patch_size": 8, "num_labels": CLASSES},
        _named(input_values=normal(24, 16)),
        distances,
    ),
    ("ViT", _IMAGE_CLASSIFIER, _IMAGE, _named(**_PIXELS), distances),
    ("DeiT", _IMAGE_CLASSIFIER, _IMAGE, _named(**_PIXELS), distances),
    (
        "Beit",
        _IMAGE_CLASSIFIER,
        {**_IMAGE, "use_relative_position_bias": True, "layer_scale_init_value": 0.1},
        _named(**_PIXELS),
        distances,
    ),
    ("Dinov2", _IMAGE_CLASSIFIER, _IMAGE, _named(**_PIXELS), distances),
    (
        "Swin",
        _IMAGE_CLASSIFIER,
        _WINDOWS,
        _named(**_PIXELS),
        distances,
    ),
    (
        "Swinv2",
        _IMAGE_CLASSIFIER,
        _WINDOWS,
        _named(**_PIXELS),
        distances,
    ),
    (
        "ConvNext",
        _IMAGE_CLASSIFIER,
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": CLASSES},
        _named(**_PIXELS),
        distances,
    ),
    (
        "ResNet",
        _IMAGE_CLASSIFIER,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": CLASSES},
        _named(pixel_values=images(32)),
        distances,
    ),
    (
        "Segformer",
        "ForSemanticSegmentation",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
            "num_labels": CLASSES,
        },
        _named(pixel_values=images(32)),
        distances,
    ),
    (
        "MobileViT",
        _IMAGE_CLASSIFIER,
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 16],
            "neck_hidden_sizes": [4, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 2,
            "num_labels": CLASSES,
        },
        _named(pixel_values=images(64)),
        distances,
    ),
    ("CLIP/Vision", "VisionModel", _IMAGE, _named(**_PIXELS), distances),
    ("CLIP/Text", "TextModel", _BERT, _TEXT, distances),
    (
        "ViTMAE",
        "ForPreTraining",
        {
            **_IMAGE,
            "decoder_hidden_size": 8,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 8,
            "norm_pix_loss": False,
        },
        _named(**_PIXELS),
        distances,
    ),
    (
        "PatchTST",
        "ForPrediction",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 8,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "ffn_dim": 8,
            "prediction_length": 4,
        },
        _named(past_values=normal(16, 2)),
        distances,
    ),
    (
        "DecisionTransformer",
        "Model",
        {"state_dim": 3, "act_dim": 2, "hidden_size": 16, "n_layer": 1, "n_head": 2, "max_ep_len": 20},
        _named(
            states=normal(4, 3),
            actions=normal(4, 2),
            rewards=normal(4, 1),
            returns_to_go=normal(4, 1),
            timesteps=lambda count: torch.arange(4).repeat(count, 1),
            attention_mask=lambda count: torch.ones(count, 4),
        ),
        distances,
    ),
]


def configurations() -> dict[str, Configuration]:
    """By name."""
    return {
        f"transformers: {family.partition('/')[0]}{kind}": Configuration(
            "transformers", partial(transformer, family, kind, options), batch, losses
        )
        for family, kind, options, batch, losses in _MODELS
    }
