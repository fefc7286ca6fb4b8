from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from pipekit.clusters import V100
from pipekit.models import amoebanet_d
from pipekit.papers.costs import estimated, images
from pipekit.papers.gpipe.memory import amoebanet_b
from pipekit.papers.gpipe.memory import amoebanet_d as of_any_size
from pipekit.papers.gpipe.memory.accelerators import (
    GB,
    bytes_per_parameter,
    fullest,
    held,
    in_precision,
    plan_of,
)
from pipekit.papers.gpipe.memory.amoebanet_d import NUMBERS
from pipekit.papers.gpipe.memory.table1 import Column, convolution_gb
from pipekit.papers.gpipe.scenarios import MINIBATCH, PIXELS, named
from pipekit.profiling import LayerProfile, Profile

# In GB: weights of which the last layer has most, activations of which the first has most.
CHAIN = Profile(
    tuple(
        LayerProfile("layer", 1, 2, output_bytes=GB, parameter_bytes=w * GB, saved_bytes=a * GB)
        for w, a in ((0, 4), (0, 2), (1, 2), (3, 2))
    ),
    rows=1,
    input_bytes=GB,
)


def test_columns_are_as_printed() -> None:
    column = Column.of("pipeline-8")
    assert (column.layers, column.filters, column.parameters) == (24, 512, 1.8e9)
    assert (column.parameter_gb, column.activation_gb) == (24.62, 26.24)
    assert column.mean_gb == pytest.approx((24.62 + 26.24) / 8)
    scenarios = column.scenario, Column.of("naive-1").scenario
    assert [(s.stages, s.rows, s.microbatches, s.recompute) for s in scenarios] == [
        (8, 8, 16, "always"),
        (1, 128, 1, "never"),
    ]


def test_a_network_is_held_as_the_formula_says() -> None:
    """By hand: 12 bytes for 4 of a parameter; N + L/K N/T: two inputs, and one microbatch's rest."""
    scenario = named("pipeline-2", minibatch=2, microbatches=2)
    found = held(CHAIN, scenario, "memory")
    assert found["layers"].tolist() == [3, 1]
    assert found["parameters"].tolist() == [3, 9]
    assert found["activations"].tolist() == [2 + 8 + 1, 2 + 2 + 1]
    assert found["total"].tolist() == [14, 14]
    assert fullest(CHAIN, scenario, "memory") == 14
    with_gradients = held(CHAIN, scenario, "memory", gradients=True)
    # At the second backward all of them are there, and one input fewer.
    assert with_gradients["activations"].tolist() == [1 + 8 + 1 + 1, 1 + 2 + 1 + 3]


def test_without_gpipe_all_rows_are_kept() -> None:
    (found,) = held(CHAIN, named("naive-1", minibatch=2)).to_dict("records")
    assert found == {"layers": 4, "parameters": 12, "activations": 2 * 12, "total": 36}


def test_gpipes_own_partitioner_looks_at_computation() -> None:
    flops = [3.0, 1.0, 1.0, 1.0]
    layers = tuple(
        LayerProfile("layer", 1, 2, flops=f, parameter_bytes=n) for n, f in enumerate(flops)
    )
    scenario = named("pipeline-2", 2, 2)
    assert plan_of(Profile(layers), scenario).balance == [1, 3]
    assert plan_of(Profile(layers), scenario, "memory").balance == [3, 1]


def test_narrower_activations_leave_weights() -> None:
    half = in_precision(CHAIN, 2)
    assert half.layers[0].saved_bytes == 2 * GB
    assert half.layers[3].parameter_bytes == 3 * GB
    assert half.input_bytes == half.layers[0].output_bytes == GB / 2


def test_what_convolutions_put_out_is_what_their_batch_norms_take() -> None:
    normalised = 0

    def note(_: nn.Module, given: tuple[torch.Tensor], __: object) -> None:
        nonlocal normalised
        normalised += given[0].numel()

    model = amoebanet_d(3, 8, device="meta")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(note)
    model(torch.empty(MINIBATCH, 3, PIXELS, PIXELS, device="meta"))
    smallest = replace(Column.of("naive-1"), layers=1, filters=8)
    assert convolution_gb(smallest) == (4 * normalised / GB, 2 * normalised / GB)


def test_rmsprop_with_momentum_has_twelve_bytes_a_parameter() -> None:
    assert bytes_per_parameter() == 12


@pytest.mark.long
def test_any_size_follows_from_three_small_networks() -> None:
    ours = of_any_size.profile(layers=4, filters=40, rows=2, pixels=32)
    theirs = estimated(partial(amoebanet_d, 12, 40), images(2, 32), V100)
    assert len(ours) == len(theirs)
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert [getattr(one, name) for name in NUMBERS] == [
            getattr(other, name) for name in NUMBERS
        ]
        assert one.saves_output == other.saves_output


def test_amoebanet_b_is_counted_as_amoebanet_d_is() -> None:
    for layers, filters in ((1, 8), (2, 64)):
        model = amoebanet_d(3 * layers, filters, device="meta")
        assert amoebanet_b.parameters("D", layers, filters) == sum(
            p.numel() for p in model.parameters()
        )
    assert amoebanet_b.parameters("B", 6, 512) > amoebanet_b.parameters("D", 6, 512)
