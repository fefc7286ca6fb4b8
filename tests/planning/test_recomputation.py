"""Layers to recompute: the cheapest that fit, by trying all; simulated and trained as chosen."""

from functools import partial
from itertools import chain, combinations
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)

import pipekit as pk
from pipekit import Plan, Profile, schedules
from pipekit.planning import layers_to_recompute
from pipekit.profiling import LayerProfile
from pipekit.schedules import Op
from tests.planning.enumeration import profiles

BLOCK = LayerProfile(
    "block", 1.0, 2.0, output_bytes=1, saved_bytes=10, saves_output=True, parameter_bytes=3
)
BLOCKS = Profile((BLOCK,) * 16, input_bytes=1)
FOUR = Plan.by_hand([4] * 4)


def test_early_stages_have_more_in_flight_and_recompute_more() -> None:
    """A block frees 9 of its 10 bytes, as often as 4, 3, 2 and 1 microbatches are in flight."""
    chosen = layers_to_recompute(BLOCKS, FOUR, schedules.flush(4, 8), 150)
    # Weights, gradients and momentum are 36, inputs and activations 41 a microbatch, a block 9.
    needed = [36 + 41 * count + 9 - 150 for count in (4, 3, 2, 1)]
    assert needed == [59, 18, -23, -64]
    assert [sum(layer // 4 == stage for layer in chosen) for stage in range(4)] == [2, 1, 0, 0]


def test_nothing_runs_again_where_all_fits() -> None:
    assert layers_to_recompute(BLOCKS, FOUR, schedules.flush(4, 8), 200) == ()


def held(profile: Profile, own: range, in_flight: int) -> float:
    """Of a stage with momentum: weights, gradients, state, and microbatches as they are kept."""
    stage, entering = profile.stage(own[0], own[-1] + 1), profile.boundary_bytes(own[0])
    output = 0 if stage.saves_output else stage.output_bytes
    kept = entering + stage.saved_bytes + output
    return 3 * stage.parameter_bytes + stage.buffer_bytes + in_flight * kept


def least_seconds(profile: Profile, own: range, in_flight: int, memory: float) -> float:
    """By trying all choices; with any, there is room for what the largest layer frees."""
    freed = [held(profile, own, 1) - held(profile.recomputing([layer]), own, 1) for layer in own]
    choices = chain.from_iterable(combinations(own, n) for n in range(len(own) + 1))
    return min(
        (
            sum(profile.layers[layer].forward_s for layer in choice)
            for choice in choices
            if held(profile.recomputing(choice), own, in_flight) + bool(choice) * max(freed)
            <= memory * (1 + 1e-9)
        ),
        default=inf,
    )


@given(profiles(6), st.integers(1, 3), st.integers(1, 3), st.floats(-0.1, 1.5))
def test_no_other_choice_is_cheaper(
    profile: Profile, stages: int, microbatches: int, share: float
) -> None:
    stages = min(stages, len(profile))
    balance = [1] * (stages - 1) + [len(profile) - stages + 1]
    schedule, plan = schedules.flush(stages, microbatches), Plan.by_hand(balance, rows=4)
    own = [range(stage.first, stage.stop) for stage in plan.stages]
    in_flight = [min(microbatches, stages - stage) for stage in range(stages)]
    kept, again = (
        max(map(partial(held, each), own, in_flight))
        for each in (profile, profile.recomputing(range(len(profile))))
    )
    memory = again + share * (kept - again)
    least = [least_seconds(profile, *each, memory) for each in zip(own, in_flight, strict=True)]
    if max(least) == inf:
        with pytest.raises(ValueError, match="has no room for its layers"):
            layers_to_recompute(profile, plan, schedule, memory)
        return
    chosen = layers_to_recompute(profile, plan, schedule, memory)
    assert sum(profile.layers[layer].forward_s for layer in chosen) == sum(least)
    run = pk.simulate(schedule, profile.recomputing(chosen), plan, batches=2, optimizer_states=1)
    assert run.memory is not None
    assert max(run.memory.peak_bytes) <= memory * (1 + 1e-9)


def test_stages_of_one_worker_share_its_room() -> None:
    schedule, plan = schedules.interleaved(8, 8, workers=4), Plan.by_hand([2] * 8)
    for memory in (220, 150, 100):
        chosen = layers_to_recompute(BLOCKS, plan, schedule, memory)
        run = pk.simulate(schedule, BLOCKS.recomputing(chosen), plan, optimizer_states=1)
        assert run.memory is not None
        assert max(run.memory.peak_bytes) + 9 <= memory


def test_a_recomputed_layer_begins_its_backward_with_its_forward() -> None:
    layers = [LayerProfile("a", 1, 3, output_bytes=2, saved_bytes=5), BLOCK]
    _, block = Profile(tuple(layers)).recomputing([1]).layers
    assert (block.backward_s, block.saved_bytes) == (3, 1)
    assert [block.seconds(op) for op in (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)] == [2, 1]
    before, _ = Profile(tuple(layers)).recomputing([1]).layers
    assert (before.saved_bytes, before.saves_output) == (7, True)  # the block's input


def test_too_little_memory_is_refused_with_the_least_that_is_enough() -> None:
    with pytest.raises(ValueError, match=r"worker 0 has no room .* give it 65 bytes"):
        layers_to_recompute(BLOCKS, FOUR, schedules.flush(4, 8), 60)
    assert len(layers_to_recompute(BLOCKS, FOUR, schedules.flush(4, 8), 65)) > 4
    with pytest.raises(ValueError, match="4 stages and the schedule 2: build the schedule for 4"):
        layers_to_recompute(BLOCKS, FOUR, schedules.flush(2, 8), 60)
    with pytest.raises(ValueError, match="no layer 16: name those from 0 to 15"):
        BLOCKS.recomputing([16])


def trained(layers: tuple[int, ...]) -> tuple[pk.Pipeline, pk.Run]:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(6))
    model = nn.Sequential(*blocks)
    apply_activation_checkpointing(model, check_fn=lambda m: m in [model[n] for n in layers])
    pipeline = pk.Pipeline(
        model,
        schedules.flush(3, 4),
        balance=[2, 2, 2],
        optimizer=partial(torch.optim.Adam, lr=0.01),
        loss=nn.MSELoss(),
    )
    batches = [(torch.randn(32, 8), torch.randn(32, 8)) for _ in range(2)]
    return pipeline, pipeline.train(batches, watch=pk.Watch(memory=True))


def test_layers_that_torch_recomputes_train_to_the_bit_in_less_memory() -> None:
    (plain, before), (again, after) = trained(()), trained((0, 1, 2))
    assert before.losses == after.losses
    pairs = zip(plain.state_dict().items(), again.state_dict().items(), strict=True)
    assert all(name == other and torch.equal(w, v) for (name, w), (other, v) in pairs)
    peaks = (pk.measure_memory(run).peak_bytes for run in (before, after))
    least = [more - less for more, less in zip(*peaks, strict=True)]
    assert least[0] > least[1] > least[2] == 0
