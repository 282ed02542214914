"""Units of several rows: what they cost in accuracy, and in memory where there are millions. Results: UNITS.md.

python checks/units.py study            row level against unit level, at the same budgets for persons
python checks/units.py large 20000000   so many rows on disk, ten to a unit: planned, and trained for ten steps
python checks/units.py copies DATA      CF-PC on small images, with K cropped and flipped copies of each

The protocol of ``copies``: CF-PC of the registry at scale ``laptop`` (40 steps, an expected batch of 256, its budgets)
by ``auto``, on means of 2 x 2 pixels and with a quarter of the network's widths, so that two cores can do it. Images as
they are, and 1, 4 and 8 copies of each, shifted by up to 2 pixels and flipped by a coin; budgets, steps and expected
batch are the same for all. Each has the learning rate, in noise units, of two that scores best (overall plus worst
owner) at one seed on a fifth of the training images, and is then trained with three paired seeds.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from inosgd import INO_SGD, Owners, Plan, PlanConfig, SeededSource, Trainer, TrainingState, fit, make_plan, supervised
from inosgd._arrays import FloatArray
from inosgd.analysis.guarantees import group_guarantees
from inosgd.augmentation import Augmentation
from inosgd.data.mapped import MappedExamples
from inosgd.gradients import ExampleLosses, Examples, OffsetLosses
from inosgd.method import AUTO
from inosgd.paper.registry import study_named
from inosgd.study.building import build
from inosgd.study.config import TrainingConfig, plan_for
from inosgd.study.example import example_data, example_study
from inosgd.study.from_file import study_from
from inosgd.study.judging import judge_result
from inosgd.study.reading import read_study
from inosgd.study.shares import settled
from inosgd.study.study import Groups, Study, StudyData, for_validation
from inosgd.training import Callback
from inosgd.units import Units

SEEDS, STEPS, OWNERS = 5, 100, 100
COPIES, RATES, COPIED_SEEDS, VALIDATION_SEED = (0, 1, 4, 8), (0.015, 0.03), (0, 1, 2), 100


def compare(folder: Path) -> None:
    """The study of ``inosgd new --unit`` by units, by rows at the same budgets for persons, and by rows as declared."""
    (folder / "data.csv").write_text(example_data(units=True))
    (folder / "study.toml").write_text(example_study("data.csv", units=True))
    study = study_from(read_study(folder / "study.toml"))
    units = study.split(0)
    config, rows = settled(study.config.changed({"steps": STEPS}), units), by_row(units)
    most = int(units.units.counts.max()) if units.units is not None else 1
    declared = plan_for(config, rows.owners.table)
    stricter = for_persons(config, rows, most)
    print(f"{len(units.owners)} patients, {len(rows.owners)} rows, at most {most} of one")
    print("by rows as declared, a patient of that many has", [f"{each:.2f}" for each in of_group(declared, most)])
    for label, plan, data in (
        ("by units", plan_for(config, units.owners.table), units),
        ("by rows, at the same budgets for patients", stricter, rows),
        ("by rows, at the budgets as declared", declared, rows),
    ):
        print(label, scores(study, config, plan, data))


def by_row(data: StudyData) -> StudyData:
    """The same examples, each protected by itself; the same patients are held out."""
    table, owner_of_row = data.owners.table, np.asarray(data.row_owners, dtype=np.int64)
    own = {name: budget for name, budget, _ in table if " & " not in name}
    owners = Owners.from_rows(owner_of_row, own)
    groups = Groups.of_owners(owners.table)
    return dataclasses.replace(data, owners=owners, groups=groups, train_groups=owners.assignment, units=None)


def of_group(plan: Plan, size: int) -> list[float]:
    """What so many rows of each owner spend together."""
    return [group_guarantees(plan, row, (size,), whole=False)[str(size)] for row in range(len(plan.table))]


def for_persons(config: TrainingConfig, data: StudyData, size: int) -> Plan:
    """A plan by rows under which groups of ``size`` rows keep the declared budgets."""
    table, shares = data.owners.table, np.full(len(data.owners.table), 1 / (1.3 * size))
    while True:
        plan = plan_for(config, dataclasses.replace(table, epsilons=table.epsilons * shares))
        spent = np.array(of_group(plan, size))
        if (spent <= table.epsilons).all():
            return plan
        shares = shares * np.minimum(1.0, 0.98 * table.epsilons / spent)


def scores(study: Study, config: TrainingConfig, plan: Plan, data: StudyData) -> str:
    """Accuracy of all held-out examples and of the worst owner's, over seeds."""
    return spread([final(study, config, plan, data, seed) for seed in range(SEEDS)])


def final(
    study: Study,
    config: TrainingConfig,
    plan: Plan,
    data: StudyData,
    seed: int,
    losses: ExampleLosses | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[float, float]:
    """Accuracy overall and of the worst owner after one training."""
    built = build(study, data, plan, config, seed=seed)
    trainer = built.trainer if losses is None else dataclasses.replace(built.trainer, losses=losses)
    state = TrainingState.start(trainer, built.model, built.optimizer, SeededSource(seed), also=built.also)
    judged = judge_result(data, fit(trainer, state, callbacks=callbacks), measure=False)
    return judged.overall, judged.worst


def spread(found: Sequence[tuple[float, float]]) -> str:
    """Means and standard deviations."""
    (overall, worst), (wide, wider) = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
    return f"accuracy {100 * overall:.1f} ± {100 * wide:.1f} %, worst owner {100 * worst:.1f} ± {100 * wider:.1f} %"


def copies(data: Path) -> None:
    """See the protocol above; what each training gave, and then its summary."""
    study = study_named("CF-PC", "laptop", data).changed({"learning_rate_unit": "noise"})
    arms = {number: dataclasses.replace(study, model=in_turns(small_network)) for number in COPIES}
    losses = {number: Once(supervised(F.cross_entropy)) for number in COPIES}
    seconds: dict[int, list[float]] = {number: [] for number in COPIES}

    def split(seed: int) -> StudyData:
        return with_small_images(study.split(seed))

    def score(number: int, rate: float, data: StudyData, seed: int) -> tuple[float, float]:
        config = settled(study.config.by(AUTO).changed({"learning_rate": rate}), data)
        config = dataclasses.replace(config, augmentation=Augmentation(number, padding=2) if number else None)
        plan, began = plan_for(config, data.owners.table), [time.process_time()]
        clock = lambda *_: began.append(time.process_time())  # noqa: E731
        found = final(arms[number], config, plan, data, seed, losses[number], [clock])
        seconds[number] += np.diff(began[1:]).tolist()
        print(f"copies {number}, rate {rate}, seed {seed}: {100 * found[0]:.1f} / {100 * found[1]:.1f}", flush=True)
        return found

    tried = for_validation(split(VALIDATION_SEED), VALIDATION_SEED)
    best = {each: max(RATES, key=lambda rate: sum(score(each, rate, tried, VALIDATION_SEED))) for each in COPIES}
    found = {seed: {each: score(each, best[each], split(seed), seed) for each in COPIES} for seed in COPIED_SEEDS}
    for each in COPIES:
        step, one = np.median(seconds[each]), np.median(seconds[1])
        scored = spread([of_seed[each] for of_seed in found.values()])
        print(f"copies {each}, rate {best[each]}: {scored}; {step:.2f} s of CPU a step, {step / one:.2f} of one copy's")


@dataclasses.dataclass(frozen=True, eq=False)
class Once:
    """Losses that are the same whenever the same offsets are added to logits, so that the engine tries them once."""

    losses: OffsetLosses
    made: dict[bytes, ExampleLosses] = dataclasses.field(default_factory=dict)

    def __call__(self, model: torch.nn.Module, examples: Examples) -> torch.Tensor:
        """The losses without offsets."""
        return self.losses(model, examples)

    def with_offsets(self, offsets: FloatArray) -> ExampleLosses:
        """The losses with these offsets."""
        return self.made.setdefault(offsets.tobytes(), self.losses.with_offsets(offsets))


def with_small_images(data: StudyData) -> StudyData:
    """Means of 2 x 2 pixels in the place of pixels."""
    examples, judged = data.examples, data.judged_by
    return dataclasses.replace(
        data,
        examples=dataclasses.replace(examples, inputs=F.avg_pool2d(examples.inputs, 2)),
        held_out=dataclasses.replace(judged, inputs=F.avg_pool2d(judged.inputs, 2)),
    )


def small_network(data: StudyData, seed: int) -> torch.nn.Module:
    """The paper's network with a quarter of its widths; its last block has 2 x 2 pixels on such images."""
    layers: list[torch.nn.Module] = []
    channels = 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for width in (8, 16, 32):
            layers += [torch.nn.Conv2d(channels, width, 3, padding=1), torch.nn.Tanh()]
            layers += [torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.Tanh(), torch.nn.MaxPool2d(2)]
            channels = width
        layers += [torch.nn.Flatten(), torch.nn.Linear(128, 32), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(32, data.task.outputs))


def in_turns(model: Callable[[StudyData, int], torch.nn.Module]) -> Callable[[StudyData, int], torch.nn.Module]:
    """The same models, one after the other in one module, which the engine therefore tries once."""
    kept: list[torch.nn.Module] = []

    def build(data: StudyData, seed: int) -> torch.nn.Module:
        kept.append(model(data, seed))
        kept[0].load_state_dict(kept[-1].state_dict())
        return kept[0]

    return build


def large(folder: Path, rows: int) -> None:
    """Plan and train on rows on disk whose units stand anywhere, and say how much memory it took."""
    write(folder, rows)
    began, start = time.perf_counter(), peak()
    units = Units.of(np.load(folder / "units.npy", mmap_mode="r"), name="person", max_rows=8)
    owner_of_row = np.load(folder / "owners.npy", mmap_mode="r")
    budgets = {f"owner {number}": 0.5 + number / 20 for number in range(OWNERS)}
    owners = units.owned_by(Owners.from_rows(owner_of_row, budgets, delta=1e-8))
    asked = PlanConfig(steps=10, variant="fair", expected_batch_size=256, clipping_threshold=1.0)
    plan = make_plan(owners.table, asked, verify=False)
    examples = MappedExamples.open((folder / "inputs.npy", folder / "targets.npy"))
    trainer = Trainer(plan, owners, examples, supervised(F.cross_entropy), INO_SGD, units=units)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    fit(trainer, TrainingState.start(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), SeededSource(0)))
    seconds = time.perf_counter() - began
    print(f"{rows:,} rows, {len(units):,} units: {peak():.2f} GiB at most, {start:.2f} before; {seconds:.0f} s")


def write(folder: Path, rows: int) -> None:
    """Four numbers, a class, a unit and an owner for each row, piece by piece."""
    rng, shapes = (
        np.random.default_rng(0),
        {"inputs": (rows, 4), "targets": (rows,), "units": (rows,), "owners": (rows,)},
    )
    types = {"inputs": np.float32, "targets": np.int64, "units": np.int64, "owners": np.uint16}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", types[name], shape)
        for name, shape in shapes.items()
    }
    for first in range(0, rows, 1 << 20):
        piece = slice(first, min(first + (1 << 20), rows))
        inputs, units = rng.normal(size=(piece.stop - first, 4)), rng.integers(0, rows // 10, piece.stop - first)
        files["inputs"][piece], files["targets"][piece] = inputs, inputs[:, 0] > 0
        files["units"][piece], files["owners"][piece] = units, units % OWNERS


def peak() -> float:
    """GiB that this process has taken at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        if sys.argv[1] == "study":
            compare(Path(name))
        elif sys.argv[1] == "copies":
            copies(Path(sys.argv[2]))
        else:
            large(Path(name), int(sys.argv[2]))
