import pytest
import torch
from torch import nn

from experiments.pipedream.staleness.study import (
    Study,
    largest_relative_difference,
    make_study,
    stashing_delays,
)
from pipekit import schedules


@pytest.fixture(scope="module")
def study() -> Study:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(5, 5), nn.Tanh())]
    shape = 4, 5
    data = [
        (torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64))
        for _ in range(6)
    ]
    return Study(nn.Sequential(*layers).double(), [2] * 3, data, nn.MSELoss(), 0.5)


def test_the_engine_replays_the_equation_and_not_the_text(study: Study) -> None:
    engine = study.engine_history(schedules.pipedream(3))
    delays = stashing_delays(3)
    assert delays == [2, 1, 0]
    assert largest_relative_difference(engine, study.replay(delays)) == 0
    text = study.replay([delay + 1 for delay in delays])
    assert largest_relative_difference(engine, text) > 1e-3


def test_only_stashing_follows_a_gradient(study: Study) -> None:
    old = [lambda t, delay=delay: t - delay for delay in stashing_delays(3)]
    new = [lambda t: t] * 3
    kept = study.engine_history(schedules.pipedream(3))
    lost = study.engine_history(schedules.pipedream(3, stashing=False))
    assert max(study.gradient_errors(kept, old)) < 1e-12
    assert min(study.gradient_errors(lost, old)) > 1e-3
    assert min(study.gradient_errors(lost, new)) > 1e-3


def test_a_study_has_its_precision_and_seed() -> None:
    one, same = (make_study(torch.float64, 3, 5, 0.1, seed=7) for _ in range(2))
    assert one.batches[2][0].dtype == torch.float64
    assert torch.equal(one.batches[2][1], same.batches[2][1])
    assert (one.stages, len(one.batches), one.lr) == (4, 3, 0.1)
