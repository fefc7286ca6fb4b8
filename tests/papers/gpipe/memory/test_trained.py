import pandas as pd
import pytest

from pipekit.papers.gpipe.memory import trained
from pipekit.papers.gpipe.scenarios import named
from pipekit.traces.memory import Memory


@pytest.mark.long
def test_trained_networks_hold_what_the_model_predicts() -> None:
    scenarios = [named("pipeline-2", minibatch=8, microbatches=4)]
    found = trained.comparison(scenarios, budget_mb=1, layers=1, filters=(8, 16, 24), pixels=32)
    assert found["by model"].tolist() == found["by training"].tolist()
    assert "same answer in 1 of 1 columns" in trained.figure(found).layout.title.text
    assert found["fits"].tolist() == [True, False]
    assert found["error"].abs().max() < 0.05
    training = found["by training"].iloc[0]
    assert found["filters"].tolist() == [training, training + 8]


def test_activation_bytes_are_summed_over_workers_at_their_peaks() -> None:
    frame = pd.DataFrame(
        [(0, 0, 5, 0), (0, 1, 5, 3), (0, 2, 9, 0), (1, 0, 1, 1)],
        columns=["worker", "time_s", "activations", "recompute"],
    ).assign(weights=7, gradients=7, optimizer=7)
    assert trained.activation_bytes(Memory(frame, "measured")) == 9 + 2
