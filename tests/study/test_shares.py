"""Class shares of a study: declared or counted, in its file and in every training of it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from inosgd.adjustment import Adjustment
from inosgd.analysis.task import regression
from inosgd.compare.entrant import Entrant
from inosgd.compare.training import train_once
from inosgd.errors import InfeasibleError, InvalidArgumentError
from inosgd.ledger.records import read_chain
from inosgd.method import INO_SGD_FAIR
from inosgd.models.saved import CARD
from inosgd.owners import Budget
from inosgd.runs.folder import RunFolder
from inosgd.runs.progression import Changes, carry_out, propose
from inosgd.study.built_in import STUDIES
from inosgd.study.problems import StudyFileError
from inosgd.study.reading import read_study
from inosgd.study.running import begin_training, create_run, finish, prepare, prepare_again, resume_training
from inosgd.study.shares import adjusted_by, settled
from inosgd.training import fit
from tests.studies import written_study
from tests.study.writers import OWNERS, table_text, write_study

SHARES = zip(OWNERS, (0.25, 0.5, 1.0), strict=True)
DECLARED = "".join(f"{name} = {{ yes = {share}, no = {1 - share} }}\n" for name, share in SHARES)
SECTION = '[training.adjustment]\ntau = 1.5\ntarget = "classes"\n\n[shares.owners]\n'
ADJUSTED = ("[model]", f"{SECTION}{DECLARED}\n[model]")
COUNTED = ("[model]", "[training.adjustment]\n\n[shares]\ncount = true\n\n[model]")


def many_rows() -> str:
    return table_text(rows=6000)


def test_a_study_file_declares_shares_and_every_training_uses_them(tmp_path):
    study = written_study(tmp_path, ADJUSTED)
    assert study.config.method.adjustment == Adjustment(1.5, "classes")
    prepared = prepare(study)
    shares = prepared.trainer.shares
    assert shares.sources == ("declared",) * 3
    assert dict(zip(shares.classes, shares.rows_for(OWNERS)[0].tolist(), strict=True)) == {"yes": 0.25, "no": 0.75}
    terms = prepared.trainer.plan.at(0)
    offsets = prepared.trainer.losses_under(terms, shares).offsets[torch.float64]
    assert offsets.tolist() == Adjustment(1.5, "classes").offsets(terms, prepared.trainer.plan.table, shares).tolist()
    run = create_run(tmp_path / "run", prepared)
    with run.lock() as locked:
        outcome = finish(locked, prepared, begin_training(locked, prepared), every=100)
    card = (outcome.model / CARD).read_text()
    assert "signals taken out of the loss (tau 1.5, target classes) by class shares, declared for 3 owners" in card


def test_shares_may_be_in_a_file(tmp_path):
    (tmp_path / "shares.csv").write_text("owner,yes,no\n" + "".join(f"{name},0.3,0.7\n" for name in OWNERS))
    study = written_study(tmp_path, ("[model]", '[training.adjustment]\n\n[shares]\nfile = "shares.csv"\n\n[model]'))
    shares = study.split(0).shares
    assert shares.owners == OWNERS
    assert shares.rows_for(OWNERS)[2][shares.classes.index("yes")] == pytest.approx(0.3)


def test_counted_classes_are_charged_once_and_a_resumed_run_ends_with_the_same_bits(tmp_path):
    weights = []
    for name, interrupted in (("whole", False), ("interrupted", True)):
        study = written_study(tmp_path, COUNTED, data=many_rows())
        study = dataclasses.replace(study, config=dataclasses.replace(study.config, seed=5))
        prepared = prepare(study)
        assert prepared.trainer.plan.count is not None
        run = create_run(tmp_path / name, prepared)
        with run.lock() as locked:
            state = begin_training(locked, prepared)
            counted = state.shares
            if interrupted:
                fit(prepared.trainer, state, steps=4)
                state.ledger.close()
                prepared = prepare_again(RunFolder.open(tmp_path / name), study)
                state = resume_training(locked, prepared).state
                assert state.shares == counted
            outcome = finish(locked, prepared, state, every=3)
        assert state.shares.sources == ("counted",) * 3
        np.testing.assert_allclose(outcome.spent, prepared.trainer.plan.spent, rtol=1e-6)
        records = [json.loads(line) for line in (tmp_path / name / "ledger.jsonl").read_text().splitlines()]
        assert sum(record.get("kind", record.get("body", {}).get("kind")) == "count" for record in records) == 1
        weights.append((outcome.model / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_what_was_counted_decides_on_the_loss_and_on_nothing_that_is_charged_for(tmp_path):
    """Nor on the plan that follows a change of budgets: privacy-loss distributions compose what was fixed before."""
    found = []
    for name, ill in (("as it is", "yes"), ("other classes", "no")):
        folder = tmp_path / name
        folder.mkdir()
        changes = (COUNTED, ('method = "idp-sgd"\nvariant = "scale"\n', 'method = "auto"\n'))
        study = written_study(folder, *changes, data=many_rows().replace("yes,hospital_a", f"{ill},hospital_a"))
        study = dataclasses.replace(study, config=dataclasses.replace(study.config, seed=5))
        prepared = prepare(study)
        run = create_run(folder / "run", prepared)
        with run.lock() as locked:
            state = begin_training(locked, prepared)
            fit(prepared.trainer, state, steps=4)
            locked.write_checkpoint(state)
            state.ledger.close()
            carry_out(locked, propose(run, Changes({"hospital_a": Budget(epsilon=0.8, delta=1e-5)}), verify=False))
            prepared = prepare_again(run, study)
            state = resume_training(locked, prepared).state
            fit(prepared.trainer, state)
            state.ledger.close()
        charged = [body for body in read_chain(run.ledger_path).bodies if body["kind"] in ("count", "terms", "step")]
        plans = [path.read_bytes() for path in sorted((folder / "run" / "plans").iterdir())]
        found.append((plans, charged, state.shares))
    (plans, charged, shares), others = found[0], found[1]
    assert (len(plans), charged[0]["kind"], [body["kind"] for body in charged].count("step")) == (2, "count", 12)
    assert (plans, charged) == others[:2]
    assert abs(shares.rows_for(OWNERS) - others[2].rows_for(OWNERS)).max() > 0.2  # the control: the counts do differ


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[model]", "[training.adjustment]\n\n[model]"), "training.adjustment: it needs class shares"),
        (("[model]", "[training.adjustment]\ntau = inf\n\n[model]"), "training.adjustment.tau"),
        (("[model]", "[training.adjustment]\ntau = nan\n\n[model]"), "training.adjustment.tau"),
        (("[model]", '[training.adjustment]\ntarget = "fair"\n\n[model]'), "training.adjustment.target"),
        (
            ("[model]", "[shares]\ncount = true\nfile = 'x.csv'\n[shares.owners]\na = { yes = 1.0 }\n\n[model]"),
            "one place",
        ),
    ],
)
def test_what_cannot_be_is_said_of_the_key(tmp_path, change, message):
    with pytest.raises(StudyFileError, match=message):
        read_study(write_study(tmp_path, change))


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (f"{OWNERS[0]} = {{ yes = 0.5, no = 0.4 }}", "they add up to 0.9"),
        (f"{OWNERS[0]} = {{ yes = -0.5, no = 1.5 }}", "give a number from 0 to 1"),
        (f"{OWNERS[0]} = {{ perhaps = 1.0 }}", "give shares of the classes"),
        ("stranger = { yes = 1.0 }", "shares.owners.stranger.*there is no such owner"),
    ],
)
def test_shares_that_cannot_be_are_refused_when_the_data_are_read(tmp_path, owners, message):
    study = written_study(tmp_path, ("[model]", f"[training.adjustment]\n\n[shares.owners]\n{owners}\n\n[model]"))
    with pytest.raises(InvalidArgumentError, match=message):
        prepare(study)
    assert not (tmp_path / "run").exists()


def test_a_count_that_is_of_no_use_is_refused_before_a_run_exists(tmp_path):
    with pytest.raises(InfeasibleError, match=r"counting 2 classes of \d+ examples.*declare"):
        prepare(written_study(tmp_path, COUNTED))


def test_comparisons_adjust_with_the_shares_of_the_study():
    study = STUDIES["digits"].changed({"steps": 4})
    data = study.split(0)
    assert data.shares.rows_for(data.owners.table.names)[0, :5].sum() == pytest.approx(1.0)
    plain, adjusted = (
        train_once(study, data, Entrant("x", dataclasses.replace(INO_SGD_FAIR, adjustment=adjustment)), 0)
        for adjustment in (None, Adjustment())
    )
    assert plain.curve[-1].loss != adjusted.curve[-1].loss


def test_regression_and_studies_without_shares_cannot_be_adjusted():
    study = STUDIES["digits"]
    config = study.config.by(dataclasses.replace(INO_SGD_FAIR, adjustment=Adjustment()))
    data = study.split(0)
    with pytest.raises(InvalidArgumentError, match="it needs class shares"):
        settled(config, dataclasses.replace(data, shares=None))
    with pytest.raises(InvalidArgumentError, match="regression has no classes"):
        settled(config, dataclasses.replace(data, task=regression(["dose"])))


def test_what_a_file_leaves_out_is_the_methods_own(tmp_path):
    changes = (('method = "idp-sgd"\nvariant = "scale"\n', 'method = "auto"\n'), ADJUSTED)
    whole = written_study(tmp_path, *changes).config.method.adjustment
    part = written_study(tmp_path, *changes, ('target = "classes"\n', "")).config.method.adjustment
    assert (whole, part) == (Adjustment(1.5, "classes"), Adjustment(1.5, "owners"))
    assert written_study(tmp_path, COUNTED).config.method.adjustment == Adjustment()


def test_a_card_says_of_how_many_owners_shares_are_pooled(tmp_path):
    only = f"[training.adjustment]\n\n[shares.owners]\n{OWNERS[0]} = {{ yes = 0.5, no = 0.5 }}\n\n[model]"
    study = written_study(tmp_path, ("[model]", only))
    told = adjusted_by(study.config, study.split(0), None)
    assert told.endswith("by class shares, declared for 1 owner, pooled for 2 owners")


def test_an_owner_with_two_rows_of_shares_is_refused(tmp_path):
    (tmp_path / "shares.csv").write_text(f"owner,yes,no\n{OWNERS[0]},0.3,0.7\n{OWNERS[0]},0.4,0.6\n")
    study = written_study(tmp_path, ("[model]", '[training.adjustment]\n\n[shares]\nfile = "shares.csv"\n\n[model]'))
    with pytest.raises(InvalidArgumentError, match="appears twice"):
        study.split(0)
