"""The paper's set-up: every finding passes its criterion, and a wrong preset would not."""

from dataclasses import replace

import pytest

from experiments.pipedream.figure5 import setup
from experiments.pipedream.settings import TRAININGS
from pipekit.ledger.claims import load
from pipekit.ledger.criteria import evaluate


def test_data_trainings_and_machines_are_as_printed() -> None:
    for found in [*setup.training_findings(), *setup.machine_findings()]:
        claim = load()[found.claim]
        assert evaluate(claim.check, found.value, claim.target).passed is not False, found.claim


def test_another_learning_rate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**TRAININGS, "s2vt": replace(TRAININGS["s2vt"], lr=0.02)}
    wrong["inception-v3"] = replace(TRAININGS["inception-v3"], decay=0.95)
    monkeypatch.setattr(setup, "TRAININGS", wrong)
    sgd, inception, _ = setup.training_findings()
    assert (sgd.value, inception.value) == (False, False)
    assert setup.trainings().loc["s2vt", "lr"] == 0.02
