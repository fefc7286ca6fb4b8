import torch

from pipekit.papers.gpipe.consistency.settings import (
    FineTuning,
    ImageNet,
    findings,
    giant_amoebanet,
)
from pipekit.papers.trainings.training import learning_rates


def test_settings_are_those_of_the_ledger() -> None:
    assert [each.value for each in findings()] == [True] * 3


def test_the_learning_rate_falls_every_three_epochs() -> None:
    training = ImageNet(batch_rows=1000)
    optimizer = training.optimizer([torch.nn.Parameter(torch.zeros(1))])
    rates = learning_rates(optimizer, training.scheduler(optimizer, steps_an_epoch=2), 14)
    assert rates == [1.25] * 6 + [1.25 * 0.97] * 6 + [1.25 * 0.97**2] * 2


def test_both_trainings_run_on_a_small_network() -> None:
    torch.manual_seed(0)
    model = giant_amoebanet(normal_cells=3, filters=8, classes=5)
    batch = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    pipeline = ImageNet(batch_rows=8).pipeline(model, 2, microbatches=2, replicas=2)
    assert torch.isfinite(torch.tensor(pipeline.train([batch] * 2, trace=False).losses)).all()
    model.load_state_dict(pipeline.state_dict())
    tuned = FineTuning().pipeline(model, 2, 0.01, 1e-4, microbatches=2)
    tuned.train([(batch[0], batch[1] % 2)], trace=False)
    assert tuned.state_dict()[next(reversed(tuned.state_dict()))].shape == (2,)
