from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.pipedream.workflow import training as workflow
from pipekit import Plan
from pipekit.clusters import flat
from pipekit.oracle.versions import VERSION_READ


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_a_replicated_training_is_the_equations_and_a_wrong_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    data = [(torch.randn(3, 4), torch.randn(3, 4)) for _ in range(7)]

    def judged() -> bool:
        return workflow.trains_as_the_equations_say(model, data, [2, 1], [2, 1], sgd, nn.MSELoss())

    assert judged()
    monkeypatch.setitem(VERSION_READ, "pipedream", lambda t, s, r, w: 0)
    assert not judged()


def test_profile_plan_and_training_in_one_go() -> None:
    torch.manual_seed(0)
    # The weights are in the last layer: on slow links it must not be replicated.
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2000), nn.Linear(2000, 2))
    data = [(torch.randn(16, 8), torch.randn(16, 2)) for _ in range(4)]
    trained = workflow.profile_plan_train(model, data, flat(2, 1e6), sgd, nn.MSELoss(), repeats=2)
    assert workflow.follows_its_plan(trained)
    assert sum(trained.balance) == len(trained.profile) == 4
    assert len(trained.run.losses) == 4
    other = trained._replace(plan=Plan.by_hand([1, 1, 1, 1]))
    assert not workflow.follows_its_plan(other)


def test_losses_are_averaged_at_both_ends() -> None:
    assert workflow.first_and_last_loss([4, 2, 9, 9, 9, 9, 1, 0], 0.25) == (3, 0.5)


def test_a_command_prints_or_says_why_not() -> None:
    assert "worker 0" in workflow.command("schedule", "pipedream", "--stages", "2")
    with pytest.raises(RuntimeError, match="pipekit schedule nonsense"):
        workflow.command("schedule", "nonsense")


def test_a_workflow_that_does_not_learn_is_noticed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    data = [(torch.randn(16, 8), torch.randn(16, 2)) for _ in range(4)]
    one = workflow.profile_plan_train(model, data, flat(2, 1e9), sgd, nn.MSELoss(), repeats=2)
    falling = one._replace(run=replace(one.run, losses=[4.0, 3.0, 2.0, 1.0]))
    rising = one._replace(run=replace(one.run, losses=[1.0, 2.0]))
    found = workflow.workflow_finding({"here": falling})
    assert found.value is True
    assert f"here: {one.plan.config}, loss 4.00 to 1.00" in found.note
    assert workflow.workflow_finding({"here": falling, "there": rising}).value is False
    assert workflow.losses({"a": falling, "b": rising})["minibatch"].tolist() == [1, 2, 3, 4, 1, 2]
    assert "loss 4.00 to 1.00" in workflow.loss_figure({"a": falling}).layout.title.text


def test_one_vector_that_is_not_the_equations_fails_the_claim() -> None:
    assert workflow.vectors_finding({"7-1": True, "8": True}).value is True
    assert workflow.vectors_finding({"7-1": True, "8": False}).value is False
