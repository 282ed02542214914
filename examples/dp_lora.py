"""LoRA on the attention of a GPT-2 with epsilon 8, delta 1e-5 and AdamW: a script that fails with Opacus.

https://github.com/meta-pytorch/opacus/issues/820 reports that training looked normal there, and that the saved adapters
were unusable. Here the script also looks: adapters move, the base does not move at all, and what is loaded is what was
trained. The weights are random and the model is small, so that nothing is downloaded.

    python examples/dp_lora.py
"""

from __future__ import annotations

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from inosgd import DP_SGD, Owners, PlanConfig, make_plan
from inosgd.integrations.transformers import documents, fine_tune, mean_loss, save, trained_parameters

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def main() -> dict[str, float]:
    """Train; how far adapters and base have moved, and the losses of the trained and of the loaded model."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=64, n_layer=2, n_head=4, n_positions=32, **TOKENS))
    config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["c_attn"], task_type="CAUSAL_LM")
    config.fan_in_fan_out = True
    model = get_peft_model(base, config)
    optimizer = torch.optim.AdamW(trained_parameters(model), lr=1e-3)

    made_up = torch.randint(0, 1000, (256, 32)).tolist()
    examples = documents(made_up, length=32, pad=0)
    owners = Owners.from_labels(["all"] * len(made_up), {"all": 8.0}, delta=1e-5)
    plan = make_plan(
        owners.table, PlanConfig(steps=10, variant="uniform", expected_batch_size=32, clipping_threshold=1.0)
    )

    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    state = fine_tune(model, examples, owners, plan, optimizer=optimizer, method=DP_SGD)
    moved = {name: float((each.detach() - before[name]).norm()) for name, each in model.named_parameters()}
    found = {
        "adapters moved": sum(each for name, each in moved.items() if "lora" in name),
        "base moved": sum(each for name, each in moved.items() if "lora" not in name),
        "loss, trained": mean_loss(model, examples),
    }
    with tempfile.TemporaryDirectory() as folder:
        fresh = GPT2LMHeadModel(base.config)  # with the same random weights, as a download would have
        fresh.load_state_dict(
            {name.replace(".base_layer", ""): value for name, value in base.state_dict().items() if "lora" not in name}
        )
        found["loss, loaded"] = mean_loss(PeftModel.from_pretrained(fresh, save(state, folder)), examples)
    found["epsilon"] = float(state.ledger.spent()[0])
    print("\n".join(f"{name}: {value:.6g}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
