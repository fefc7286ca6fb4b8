import pytest
import torch

from experiments.pipedream.staleness import equations
from experiments.pipedream.staleness.study import Study, make_study
from pipekit.ledger.claims import load
from pipekit.ledger.criteria import evaluate


@pytest.fixture(scope="module")
def studies() -> tuple[Study, Study]:
    single, double = (make_study(d, 6, 5, 0.5, 0) for d in (torch.float32, torch.float64))
    return single, double


@pytest.fixture(scope="module")
def replays(studies: tuple[Study, Study]) -> equations.Equations:
    return equations.Equations(*studies)


def test_the_engine_is_the_equations_and_the_oracle_to_the_bit(
    replays: equations.Equations,
) -> None:
    assert set(replays.from_oracle.values()) == {0}
    differences = replays.table.set_index("replayed")["‖Δw‖/‖w‖"]
    assert differences.drop("the text: n steps late").max() == 0
    found = [*replays.findings(), *replays.update_findings(), replays.gradient_finding()]
    for each in found:
        claim = load()[each.claim]
        assert evaluate(claim.check, each.value, claim.target).passed, each.claim


def test_another_learning_rate_is_noticed(
    studies: tuple[Study, Study], replays: equations.Equations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies[0], "lr", 0.49)
    assert replays.update_findings()[0].value is False


def test_only_stashing_follows_a_gradient(replays: equations.Equations) -> None:
    errors = replays.gradient_frame().groupby("gradient", sort=False)[
        "relative error of the gradient"
    ]
    assert errors.max().iloc[0] < 1e-12
    assert errors.min().iloc[1:].min() > 1e-3
    assert replays.gradient_frame()["update"].unique().tolist() == [4, 5, 6]
