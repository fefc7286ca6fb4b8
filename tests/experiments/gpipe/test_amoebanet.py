"""AmoebaNets of any size from a few small ones, and the parameters of one that we do not have."""

import pytest

from experiments.gpipe import amoebanet
from experiments.gpipe.memory import GB, Column, held
from experiments.gpipe.scenarios import named
from experiments.study.costs import estimated, images
from pipekit.clusters import V100
from pipekit.models import amoebanet_d
from pipekit.profiling import LayerProfile, Profile


@pytest.mark.parametrize(("layers", "filters"), [(1, 32), (4, 40)])
def test_bytes_are_those_of_the_network_profiled_by_itself(layers: int, filters: int) -> None:
    def build(device: str) -> object:
        return amoebanet_d(3 * layers, filters, 10, device=device)

    whole = estimated(build, images(2, 32), V100)  # type: ignore[arg-type]
    ours = amoebanet.profile(layers, filters, rows=2, pixels=32, classes=10)
    for expected, found in zip(whole.layers, ours.layers, strict=True):
        for name in amoebanet.NUMBERS:
            assert getattr(found, name) == getattr(expected, name), (expected.name, name)


def test_activations_of_half_the_width_leave_the_weights() -> None:
    network = amoebanet.profile(1, 16, rows=2, pixels=32)
    narrow = amoebanet.with_activations_of(network, 2)
    assert narrow.layers[3].saved_bytes == network.layers[3].saved_bytes / 2
    assert narrow.parameter_bytes == network.parameter_bytes
    assert narrow.input_bytes == network.input_bytes / 2


def test_a_network_is_held_as_the_formula_says() -> None:
    """By hand: 12 bytes for 4 of a parameter; N + L/K N/T: two inputs, and one microbatch's rest."""
    # In GB: weights of which the last layer has most, activations of which the first has most.
    layers = (
        LayerProfile("layer", 1, 2, output_bytes=GB, parameter_bytes=w * GB, saved_bytes=a * GB)
        for w, a in ((0, 4), (0, 2), (1, 2), (3, 2))
    )
    chain = Profile(tuple(layers), rows=1, input_bytes=GB)
    scenario = named("pipeline-2", minibatch=2, microbatches=2)
    found = held(chain, scenario, "memory")
    assert found["layers"].tolist() == [3, 1]
    assert found["parameters"].tolist() == [3, 9]
    assert found["activations"].tolist() == [2 + 8 + 1, 2 + 2 + 1]
    with_gradients = held(chain, scenario, "memory", gradients=True)
    # At the second backward all of them are there, and one input fewer.
    assert with_gradients["activations"].tolist() == [1 + 8 + 1 + 1, 1 + 2 + 1 + 3]


def test_a_column_is_what_the_paper_prints() -> None:
    column = Column.of("pipeline-8")
    assert (column.layers, column.filters, column.parameters) == (24, 512, 1.8e9)
    assert column.scenario == named("pipeline-8")
    assert (column.scenario.rows, named("naive-2").rows) == (8, 128)
