import pytest

from pipekit.papers.gpipe.memory import layers


def test_a_reduction_halves_activations_and_quadruples_parameters() -> None:
    found = layers.reductions()
    assert set(found["network"]) == {"ResNet-101", "AmoebaNet-D (3, 64)"}
    assert (found["activations"] == 0.5).all()
    assert (found["parameters"] == 4).all()


@pytest.mark.long
def test_a_delayed_reduction_quadruples_activations_only() -> None:
    assert layers.delayed_reduction(layers=2, filters=8, pixels=64) == (4, 1)
