"""What an accelerator holds, by hand (GPipe, sections 3.2, 3.3 and 4.1), and AmoebaNets of any size."""

import pandas as pd
import pytest

from experiments.gpipe import amoebanet, memory
from experiments.gpipe.memory import GB, held, plan_of
from experiments.gpipe.speed import named
from experiments.study.costs import estimated, images
from pipekit.clusters import V100
from pipekit.models import amoebanet_d
from pipekit.profiling import LayerProfile, Profile
from pipekit.traces.memory import Memory

# In GB: weights of which the last layer has most, activations of which the first has most.
CHAIN = Profile(
    tuple(
        LayerProfile("layer", 1, 2, output_bytes=GB, parameter_bytes=w * GB, saved_bytes=a * GB)
        for w, a in ((0, 4), (0, 2), (1, 2), (3, 2))
    ),
    rows=1,
    input_bytes=GB,
)


def test_a_network_is_held_as_the_formula_says() -> None:
    """By hand: 12 bytes for 4 of a parameter; N + L/K N/T: two inputs, and one microbatch's rest."""
    scenario = named("pipeline-2", minibatch=2, microbatches=2)
    found = held(CHAIN, scenario, "memory")
    assert found["layers"].tolist() == [3, 1]
    assert found["parameters"].tolist() == [3, 9]
    assert found["activations"].tolist() == [2 + 8 + 1, 2 + 2 + 1]
    assert found["total"].tolist() == [14, 14]


def test_gpipes_own_partitioner_looks_at_computation() -> None:
    layers = tuple(
        LayerProfile("layer", 1, 2, flops=f, parameter_bytes=n) for n, f in enumerate((3, 1, 1, 1))
    )
    scenario = named("pipeline-2", 2, 2)
    assert plan_of(Profile(layers), scenario).balance == [1, 3]
    assert plan_of(Profile(layers), scenario, "memory").balance == [3, 1]


def test_activation_bytes_are_summed_over_workers_at_their_peaks() -> None:
    frame = pd.DataFrame(
        [(0, 0, 5, 0), (0, 1, 5, 3), (0, 2, 9, 0), (1, 0, 1, 1)],
        columns=["worker", "time_s", "activations", "recompute"],
    ).assign(weights=7, gradients=7, optimizer=7)
    assert memory.activation_bytes(Memory(frame, "measured")) == 9 + 2


@pytest.mark.long
def test_trained_networks_hold_what_the_model_predicts() -> None:
    how = named("pipeline-2", minibatch=8, microbatches=4), (1, 16, 32)
    ours, found = (find(*how).peak_bytes for find in (memory.predicted, memory.trained))
    assert list(found) == pytest.approx(ours, rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize(("layers", "filters"), [(1, 8), (4, 40)])
def test_bytes_are_those_of_the_network_profiled_by_itself(layers: int, filters: int) -> None:
    def build(device: str) -> object:
        return amoebanet_d(3 * layers, filters, 10, device=device)

    whole = estimated(build, images(2, 32), V100)  # type: ignore[arg-type]
    ours = amoebanet.profile(layers, filters, rows=2, pixels=32, classes=10)
    for expected, found in zip(whole.layers, ours.layers, strict=True):
        for name in amoebanet.NUMBERS:
            assert getattr(found, name) == getattr(expected, name), (expected.name, name)
