"""Recorded models with branches: their graph, plans on it, and training in a plan's order."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import Plan, Profile, schedules
from pipekit.clusters import V100, flat
from pipekit.partition.recording.sequence import RecordedSequence
from pipekit.partition.stages import reordered
from tests.partition.networks import require_as_in_a_plain_loop


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Branches(nn.Module):
    """Branches of two blocks each, whose outputs are added at last."""

    def __init__(self, readers: int = 2) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.readers = readers
        self.blocks = nn.ModuleList(Block() for _ in range(2 * readers))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        ends = []
        for reader in range(self.readers):
            y = self.blocks[2 * reader](stem)
            ends.append(self.blocks[2 * reader + 1](y))
        total = ends[0]
        for end in ends[1:]:
            total = total + end
        made: Tensor = self.head(total)
        return made


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
STEM, A0, A1, B0, B1, HEAD = range(6)


def recorded(readers: int = 2) -> RecordedSequence:
    torch.manual_seed(0)
    return pk.stages(Branches(readers), X)


@pytest.fixture(scope="module")
def layers() -> RecordedSequence:
    return recorded()


@pytest.fixture(scope="module")
def costs(layers: RecordedSequence) -> Profile:
    return Profile.analytic(layers, X, V100)


def test_a_graph_says_which_layers_read_what_which_made(layers: RecordedSequence) -> None:
    edges = {(value.source, user) for value in layers.passed for user in value.users}
    branches = {(STEM, A0), (A0, A1), (STEM, B0), (B0, B1)}
    # The sum is a part of b1's layer, since then one tensor crosses behind it, not two.
    assert edges - {(None, STEM)} == branches | {(A1, B1), (B1, HEAD)}


def test_a_chain_has_a_profile_without_values() -> None:
    chain = pk.stages(nn.Sequential(*(nn.Sequential(nn.Linear(6, 6)) for _ in range(3))), X)
    made = Profile.analytic(chain, X, V100)
    assert made.values == ()
    assert not made.relayed


def test_every_value_that_crosses_a_cut_counts_once(
    layers: RecordedSequence, costs: Profile
) -> None:
    """In the model's own order, as the record has it: 4 rows of 6 numbers each."""
    assert costs.relayed
    for cut in range(1, len(layers)):
        alive = [v for v in layers.passed if (v.source or 0) < cut <= max(v.users)]
        crossing = costs.layers[cut - 1].output_bytes
        crossing += sum(s.bytes for s in costs.skips if s.source == cut - 1)
        assert crossing == 4 * 6 * 4 * len(alive)
    assert costs.layers[-1].output_bytes == 4 * 3 * 4


def with_seconds(costs: Profile, *seconds: float) -> Profile:
    pairs = zip(costs.layers, seconds, strict=True)
    made = tuple(replace(layer, forward_s=s, backward_s=2 * s) for layer, s in pairs)
    return replace(costs, layers=made)


@pytest.fixture(scope="module")
def plan(costs: Profile) -> Plan:
    """The stem and the long b0 take as long as the rest: a stage with parts of both branches."""
    return pk.plan(with_seconds(costs, 1, 1, 1, 4, 2, 1), flat(2, 1e9), replicate=False)


def test_a_stage_may_have_parts_of_both_branches(plan: Plan) -> None:
    assert set(plan.order[: plan.stages[0].stop]) == {STEM, B0}
    assert plan.predicted_s == pytest.approx(3 * 5)


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_a_pipeline_runs_in_the_plans_order_to_the_bit(plan: Plan, transport: str) -> None:
    layers, data = recorded(), [(X, torch.randint(3, (4,))) for _ in range(3)]
    torch.manual_seed(0)
    how: dict[str, Any] = {"balance": plan, "transport": transport, "loss": F.cross_entropy}
    require_as_in_a_plain_loop(layers, Branches(), data, schedules.flush(2, 1), **how)


def test_simulation_takes_the_plans_order_too(costs: Profile, plan: Plan) -> None:
    trace = pk.simulate(schedules.flush(2, 1).take(1), with_seconds(costs, 1, 1, 1, 4, 2, 1), plan)
    assert trace.makespan_s == pytest.approx(30)


def test_what_cannot_run_or_is_not_the_same_is_refused(layers: RecordedSequence) -> None:
    with pytest.raises(ValueError, match="layer 1 reads what layer 0 makes"):
        reordered(layers, [A0, STEM, A1, B0, B1, HEAD])
    with pytest.raises(ValueError, match="names each of them once"):
        reordered(layers, [STEM, STEM])
    with pytest.raises(ValueError, match="no copy or part of it"):
        reordered(layers[:3], [STEM, A1, A0])


def test_a_sum_of_three_gradients_in_another_order_is_refused() -> None:
    """The stem's gradient is a sum over three branches, in the order in which they ran."""
    three = recorded(readers=3)
    assert len(three) == 8
    with pytest.raises(ValueError, match=r"the gradient of 'stem.*as_chain\(\)"):
        reordered(three, [0, 5, 3, 1, 2, 4, 6, 7])


def test_a_profile_on_a_graph_is_saved_and_scaled(costs: Profile, tmp_path: object) -> None:
    path = f"{tmp_path}/p.json"
    costs.save(path)
    assert Profile.load(path) == costs
    assert costs.scaled(8).values[0].bytes == 2 * costs.values[0].bytes
    assert costs.as_chain().layers == costs.layers
    assert costs.as_chain().values == ()
