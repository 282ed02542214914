"""Search for data that break the sensitivity bound, as long as you like: `python checks/adversary.py --seconds 3600`.

search
    Every layer of `tests/adversary.py` for the same time, with all engines, orders, tails and clippings, and importance
    weights by themselves. A ratio |S(D + e) - S(D)| / C_e above 1 is a finding.
mutants
    The faults of `tests/mutants.py`, each of which must be found.
audit
    Trainings on the worst data that were found, from the sampler to the release with its noise and with a ledger; an
    auditor who knows all data but whether the added example is there guesses from what is released. No lower bound on
    epsilon may be above what is accounted for. As a control, the same of a training that has one of the faults.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.adversary import (
    CHOICES,
    CORRECT,
    Case,
    Found,
    Settings,
    kernels,
    model_of,
    reached,
    search,
    search_weights,
    simpler,
    summed,
    trainer_of,
)
from tests.mutants import MUTANTS, inaccurate_weights

from inosgd import SeededSource
from inosgd.accounting.spending import epsilons_spent
from inosgd.audit.claims import claim_of
from inosgd.audit.findings import Finding, repeated_finding
from inosgd.audit.practice import Practice, honest
from inosgd.mechanism import release
from inosgd.owners import OwnerTable
from inosgd.plan import Phase, Plan, Terms
from inosgd.randomness import uniforms
from inosgd.shown import rounded_down, rounded_up
from inosgd.training import Trainer

NOISE_MULTIPLIER = 0.5
CONFIDENCE = 0.99
AUDITED = 6
"""How many of the worst cases are audited."""


@dataclass(frozen=True)
class Caught:
    """How a mutant was found: after how many trials, how far it came, and by which case, if by one of a model's."""

    trials: int
    ratio: float
    case: Case | None = None


# Search and mutants ---------------------------------------------------------------------------------------------------


def search_all(seconds: float, seed: int) -> dict[str, Found]:
    """Every layer in turn for half of the time; the other half goes to layers that have had the fewest trials."""
    found, share, until = {}, 0.5 * seconds / len(CHOICES["layer"]), time.monotonic() + seconds
    for layer in CHOICES["layer"]:
        found[layer] = search(seed, seconds=share, layer=layer)
    while time.monotonic() < until:
        layer = min(found, key=lambda layer: found[layer].trials)
        seed += 1
        found[layer] = found[layer].and_then(search(seed, seconds=share / 2, layer=layer))
    for layer, each in found.items():
        print(f"{layer}: {each.trials} trials, {each.ratio:.9g}", file=sys.stderr, flush=True)
    return found


def catch_all(seconds: float, seed: int) -> dict[str, Caught]:
    """Every mutant, until it is found or its time is up."""
    caught = {}
    for name, mutant in MUTANTS.items():
        found = search(seed, seconds=seconds, enough=1.0, settings=mutant.settings, threads=1, **mutant.fixed)
        caught[name] = Caught(found.trials, found.ratio, found.worst)
    trials, ratio, _ = search_weights(seed, seconds=seconds, enough=1.0, weights=inaccurate_weights)
    return {**caught, "a tail that is wrong by 3e-9": Caught(trials, ratio)}


# The audit ------------------------------------------------------------------------------------------------------------


def audited(case: Case, runs: int, seed: int, settings: Settings = CORRECT) -> Finding:
    """What repeated trainings of one step on a case's data say about the added example's owner."""
    batch = reached(case, settings).batch
    practice, trainer = practice_of(case, settings)
    claim = claim_of(practice.plan, np.array([0]), case.layer)
    present = np.ones(case.size, dtype=bool)
    absent = np.arange(case.size) != case.added

    @cache
    def trained(included: bool) -> Trainer:
        rows = present if included else absent
        some = tuple(each[torch.from_numpy(rows)] for each in batch)
        return practice.trainer(trainer.owners.assignment[rows], some, trainer.losses, engine=trainer.engine)

    with kernels(case.kernel):
        sums = [one_step(practice, trained(included), case, SeededSource(seed), 0.0) for included in (True, False)]
    direction = (sums[0] - sums[1]) / max(float((sums[0] - sums[1]).norm()), 1e-300)
    noise_scale, included = practice.terms.noise_scale, uniforms(SeededSource(seed).stream("coins"), runs) < 0.5
    scores = np.empty(runs)
    for run, here in enumerate(included.tolist()):
        with kernels(case.kernel):
            seen = one_step(practice, trained(here), case, SeededSource(seed).stream(f"run {run}"), noise_scale)
        scores[run] = float((seen - sums[1]) @ direction) / noise_scale
    return repeated_finding(claim, "worst data", included, scores, CONFIDENCE)


def practice_of(case: Case, settings: Settings) -> tuple[Practice, Trainer]:
    """One step with everybody in it: the first owner of the case is protected, the other is public."""
    trainer = trainer_of(case, reached(case, settings).batch, settings)
    thresholds, table = trainer.plan.at(0).clipping_thresholds, trainer.plan.table
    terms = Terms(np.ones(2), thresholds, NOISE_MULTIPLIER * float(thresholds[0]), float(len(trainer.store)))
    phases = (Phase(1, terms),)
    spent = np.append(epsilons_spent(phases, table.deltas, "pld")[:1], np.inf)
    sized = OwnerTable(table.names, spent, table.deltas, table.sizes)
    return honest(Plan(sized, phases, "pld", spent), trainer.method), trainer


def one_step(
    practice: Practice, trainer: Trainer, case: Case, source: SeededSource, noise_scale: float
) -> torch.Tensor:
    """What one step releases, in float64, before an optimizer rounds it; as `train_step` does it."""
    model = model_of(case.layer, case.dtype, case.kernel)
    state = practice.start(trainer, model, torch.optim.SGD(model.parameters(), 0.0), source, np.zeros(0))
    return release(summed(trainer, state), noise_scale, state.streams.noise).double()


def audit_all(found: dict[str, Found], caught: dict[str, Caught], runs: int, seed: int) -> dict[str, Finding]:
    """The worst cases, and as a control the mutant that came furthest."""
    worst = sorted((each for each in found.values() if each.worst), key=lambda each: -each.ratio)[:AUDITED]
    audits = {f"{each.worst}": audited(each.worst, runs, seed) for each in worst if each.worst}
    name = max((name for name in MUTANTS if caught[name].case), key=lambda name: caught[name].ratio)
    case = caught[name].case
    if case is not None:
        audits[f"control, {name}: {case}"] = audited(case, runs, seed, MUTANTS[name].settings)
    return audits


# The page -------------------------------------------------------------------------------------------------------------


def page(
    found: dict[str, Found], weights: Caught, caught: dict[str, Caught], audits: dict[str, Finding], command: str
) -> str:
    """The tables as Markdown."""
    lines = [
        "# The adversary",
        "",
        f"`{command}`, torch {torch.__version__}, on a machine busy with other work. A trial is two neighbouring "
        "batches and their sums as training would release them, before noise; what is drawn and how is in "
        "[tests/adversary.py](../tests/adversary.py). *Worst*: the largest |S(D + e) - S(D)| over the threshold of e: "
        "above 1, the bound is broken. *Rest*: the largest part of such a change that is not the gradient of e "
        "itself, without a tail. *Refused*: steps that were not taken, because of thresholds too far apart or a sum "
        "that is not finite.",
        "",
        "| layer | trials | refused | worst | rest | above 1 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *[
            f"| {name} | {each.trials:,} | {each.refused:,} | {rounded_up(each.ratio, 8)} | {each.excess:.1e} "
            f"| {each.above:,} |"
            for name, each in found.items()
        ],
        f"| importance weights alone | {weights.trials:,} | 0 | {rounded_up(weights.ratio, 8)} | | "
        f"{int(weights.ratio > 1)} |",
        "",
        "## Faults put back",
        "",
        "Each is in [tests/mutants.py](../tests/mutants.py); *item* is its number in the list of those that were found "
        "by hand.",
        "",
        "| fault | item | trials until found | change over threshold |",
        "| --- | --- | ---: | ---: |",
        *[
            f"| {name} | {MUTANTS[name].item if name in MUTANTS else '5'} | {each.trials:,} | {each.ratio:.6g} |"
            if each.ratio > 1
            else f"| {name} | | {each.trials:,} | NOT FOUND |"
            for name, each in caught.items()
        ],
        "",
        "## An audit on the worst data",
        "",
        f"One step with noise multiplier {NOISE_MULTIPLIER:g}, many times, the added example in by a coin; lower "
        f"bounds at {CONFIDENCE:.0%}. *If Gaussian*: if only the amount of noise is in doubt.",
        "",
        "| data | ε ≥ | ε ≥ if Gaussian | accounted ε | trials | refuted |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        *[
            f"| `{name}` | {rounded_down(each.lower_bound, 3)} | {rounded_down(each.lower_bound_of_noise, 3)} | "
            f"{rounded_up(each.accounted, 4)} | {each.trials:,} | {'YES' if each.rejected else 'no'} |"
            for name, each in audits.items()
        ],
    ]
    broken = [
        f"- {each.ratio:.9g}: `{simpler(each.worst)}`" for each in found.values() if each.worst and each.ratio > 1
    ]
    return "\n".join([*lines, "", *(["## Findings", "", *broken] if broken else ["No findings."])]) + "\n"


def wrong(found: dict[str, Found], weights: Caught, caught: dict[str, Caught], audits: dict[str, Finding]) -> list[str]:
    """What is not as it must be."""
    faults = [f"{name} breaks its bound" for name, each in found.items() if each.ratio > 1]
    faults += ["importance weights break their bound"] if weights.ratio > 1 else []
    faults += [f"{name} is not found" for name, each in caught.items() if not each.ratio > 1]
    return faults + [
        f"the audit of {name} says {each.rejected}"
        for name, each in audits.items()
        if each.rejected != name.startswith("control")
    ]


def main() -> None:
    """Search, print the page, and exit with 1 if a bound is broken, a mutant is not found, or an audit refutes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=300.0, help="for the search; the rest takes minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1000, help="trainings per audit")
    parser.add_argument("--write", action="store_true", help="put the page into checks/ADVERSARY.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started = time.monotonic()
    found = search_all(0.9 * options.seconds, options.seed)
    weights = Caught(*search_weights(options.seed, seconds=0.1 * options.seconds)[:2])
    caught = catch_all(max(60.0, options.seconds / 20), options.seed)
    audits = audit_all(found, caught, options.runs, options.seed)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    command = f"python checks/adversary.py --seconds {options.seconds:g} --seed {options.seed} --runs {options.runs}"
    shown = page(found, weights, caught, audits, command)
    print(shown)
    if options.write:
        (Path(__file__).parent / "ADVERSARY.md").write_text(shown)
    sys.exit("; ".join(wrong(found, weights, caught, audits)) or 0)


if __name__ == "__main__":
    main()
