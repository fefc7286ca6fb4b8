"""Figure 5's bytes, and how large the models are."""

import pytest

from experiments.pipedream.figure5 import sizes
from pipekit.ledger.claims import load
from pipekit.ledger.criteria import evaluate


def test_figure_five_has_the_ledgers_sizes() -> None:
    claim = load()["pipedream-fig5-vgg16-activation-sizes"]
    found = sizes.printed_sizes(sizes.vgg16_outputs())
    assert evaluate(claim.check, found.value, claim.target).passed


def test_the_layers_are_vgg16s() -> None:
    outputs = sizes.vgg16_outputs()
    assert list(outputs["layer"][:3]) == ["conv1_1", "conv1_2", "pool1"]
    assert outputs["output_mb"].iloc[-1] * 1e6 == 32 * 1000 * 4  # fc8: a float32 a class and image


def test_only_late_cuts_send_less_than_a_tenth() -> None:
    frame = sizes.vgg16_outputs()
    late = sizes.late_cuts(frame)
    assert list(late["layer"][:3]) == ["pool2", "pool3", "conv4_1"]
    assert late["cut"].min() > 90
    assert frame[~frame["layer"].isin(late["layer"])]["cut"].max() < 90


def test_what_late_cuts_save() -> None:
    found = sizes.saved_by_late_cuts(sizes.vgg16_outputs())
    assert found.value == pytest.approx(90.7, abs=0.05)
    assert "conv1_1, conv1_2, pool1, conv2_1, conv2_2, conv3_1" in found.note


def test_parameters_are_those_of_the_models_documentation() -> None:
    models = sizes.model_sizes()
    millions = models["parameters (millions)"]
    assert (millions["vgg16"], millions["inception-v3"]) == (138.357544, 23.834568)
    assert models["MB in float32"]["vgg16"] == 4 * 138.357544
    assert [each.value for each in sizes.size_findings(models)[1:2]] == [4 * 138.357544]


def test_the_figure_has_a_bar_a_layer() -> None:
    drawn = sizes.figure5(sizes.vgg16_outputs())
    assert len(drawn.data[0].y) == 21
    assert "553 MB, 411 MB at most" in drawn.layout.title.text
