"""Fine-tune a character model on the notes of two owners, each under a budget of its own, and let it write.

A small GPT-2 learns to spell on public notes first, without privacy. Then adapters (LoRA) are trained on the notes of
two weather stations: a lenient one, whose notes are about the sea, and a strict one in the mountains. One note is the
unit of the guarantee. All notes are made up here; nothing is downloaded.

    python examples/characters.py                 # some minutes
    python examples/characters.py --steps 20 --public-steps 20 --notes 200
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from inosgd import INO_SGD, Budget, Owners, PlanConfig, make_plan
from inosgd.integrations.logging import log_public
from inosgd.integrations.transformers import (
    documents,
    fine_tune,
    mean_loss,
    next_token_losses,
    save,
    trained_parameters,
)

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz.,"
PAD, END = len(ALPHABET), 0
LENGTH = 48

WORDS = {
    "public": (["today", "tonight", "tomorrow"], ["clear", "cloudy", "dry", "wet"], ["in town", "at home", "outside"]),
    "coast": (["at dawn", "at high tide"], ["foggy", "stormy", "salty"], ["over the sea", "by the harbour"]),
    "summit": (["at noon", "after dark"], ["snowy", "icy", "windy"], ["on the ridge", "near the hut"]),
}
BUDGETS = {"coast": Budget(epsilon=8.0, delta=1e-5), "summit": Budget(epsilon=2.0, delta=1e-5)}


def notes(kind: str, count: int, seed: int) -> list[str]:
    """Made-up notes, such as ``at noon it is snowy on the ridge``."""
    rng, (times, weathers, places) = random.Random(seed), WORDS[kind]
    return [f"{rng.choice(times)} it is {rng.choice(weathers)} {rng.choice(places)}.\n" for _ in range(count)]


def encoded(texts: Sequence[str]) -> dict[str, torch.Tensor]:
    """Notes as examples; each begins with the end of the one before, so that a model can begin by itself."""
    rows = [[END, *(ALPHABET.index(letter) for letter in text)] for text in texts]
    return documents(rows, length=LENGTH, pad=PAD)


def pretrained(steps: int) -> GPT2LMHeadModel:
    """A model that has learnt to spell on public notes."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "vocab_size": len(ALPHABET) + 1}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=END, eos_token_id=END, pad_token_id=PAD))
    examples = encoded(notes("public", 512, seed=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.arange(64) + 64 * step
        optimizer.zero_grad()
        next_token_losses(model, {name: each[rows % 512] for name, each in examples.items()}).mean().backward()
        optimizer.step()
    return model


def written(model: torch.nn.Module, count: int) -> list[str]:
    """Notes that the model writes."""
    start = torch.full((count, 1), END)
    mask = torch.ones_like(start)
    model.eval()
    made = model.generate(input_ids=start, attention_mask=mask, max_new_tokens=LENGTH - 1, do_sample=True, top_k=5)
    return ["".join(ALPHABET[each] for each in row[1:] if each < PAD).partition("\n")[0] for row in made.tolist()]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, save, write; the perplexity of new notes of each owner, before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="private steps")
    parser.add_argument("--public-steps", type=int, default=200)
    parser.add_argument("--notes", type=int, default=4000, help="of both owners together")
    parser.add_argument("--out", type=Path, help="folder for adapters and log; a temporary one if not given")
    given = parser.parse_args(arguments)
    set_seed(0)  # of public steps and of what is written; private steps have a secure source of their own
    folder = given.out or Path(tempfile.mkdtemp())
    base = pretrained(given.public_steps)
    model = get_peft_model(
        base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    )

    half = given.notes // 2
    examples = encoded(notes("coast", half, seed=1) + notes("summit", half, seed=2))
    owners = Owners.from_labels(["coast"] * half + ["summit"] * half, BUDGETS)
    plan = make_plan(
        owners.table,
        PlanConfig(steps=given.steps, variant="sample", expected_batch_size=given.notes / 16, clipping_threshold=1.0),
    )
    unseen = {owner: encoded(notes(owner, 200, seed=3)) for owner in BUDGETS}  # made up anew, so that it may be shown
    found = {f"{owner} before": math.exp(mean_loss(model, unseen[owner])) for owner in BUDGETS}
    state = fine_tune(
        model,
        examples,
        owners,
        plan,
        optimizer=torch.optim.AdamW(trained_parameters(model), lr=5e-3),
        method=INO_SGD,
        callbacks=[log_public(folder / "public.jsonl", steps=max(given.steps // 4, 1))],
    )
    found |= {f"{owner} after": math.exp(mean_loss(model, unseen[owner])) for owner in BUDGETS}
    save(state, folder / "adapters")

    print("\n".join(f"perplexity, {name}: {value:.2f}" for name, value in found.items()))
    print("\n".join(f"epsilon, {name}: {spent:.3f}" for name, spent in zip(BUDGETS, state.ledger.spent(), strict=True)))
    print("\n".join(written(PeftModel.from_pretrained(base, folder / "adapters"), 6)))
    return found


if __name__ == "__main__":
    main()
