"""Profiles from shapes, with other costs, and at another pace."""

import pytest
import torch

from experiments.study.costs import (
    emulate_at_pace,
    estimated,
    faster_links,
    images,
    published,
    recomputed_late,
    stretched,
    with_costs,
)
from pipekit import models, simulate
from pipekit.clusters import V100, flat
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, flush, replicate
from tests.emulation.own_time import own_time


def test_nothing_is_computed_and_a_published_network_is_known_by_name() -> None:
    found = estimated(models.alexnet, images(2, 224), V100)
    assert found.rows == 2
    assert found.parameter_bytes == 4 * sum(
        p.numel() for p in models.alexnet(device="meta").parameters()
    )
    assert published("alexnet", 2, V100).layers == found.layers
    assert images(2, 8)().shape == torch.Size([2, 3, 8, 8])


def test_only_the_named_costs_change_and_see_the_layer_as_it_was() -> None:
    profile = Profile.uniform(2, 1.0, 2.0, output_bytes=8)
    swapped = with_costs(
        profile, forward_s=lambda x: x.backward_s, backward_s=lambda x: x.forward_s
    )
    assert [(x.forward_s, x.backward_s, x.output_bytes) for x in swapped.layers] == [(2, 1, 8)] * 2
    assert [x.backward_s for x in recomputed_late(profile).layers] == [3, 3]


PROFILE = Profile.uniform(2, 0.1, 0.2, output_bytes=4e6, parameter_bytes=2e7)


@pytest.mark.parametrize(
    "schedule", [flush(2, 3).take(1), replicate(flush(2, 2).take(2), 2)], ids=str
)
def test_compute_and_links_sped_up_alike_only_change_the_pace(schedule: Schedule) -> None:
    width = len(schedule.workers) // 2
    plan, cluster = Plan.by_hand([1, 1], replicas=[width] * 2), flat(2 * width, 1e8)
    trace = simulate(schedule, PROFILE, plan, cluster)
    quick = simulate(schedule, stretched(PROFILE, 1 / 3), plan, faster_links(cluster, 3))
    assert quick.makespan_s == pytest.approx(trace.makespan_s / 3)
    assert quick.memory is not None
    assert trace.memory is not None
    assert quick.memory.peak_bytes == trace.memory.peak_bytes


def test_an_emulation_at_another_pace_is_told_in_the_profiles_own_seconds() -> None:
    plan, cluster = Plan.by_hand([1, 1]), flat(2, 1e9)
    with own_time():
        run = emulate_at_pace(flush(2, 2).take(1), PROFILE, plan, cluster, faster=5)
    expected = simulate(flush(2, 2).take(1), PROFILE, plan, cluster).makespan_s
    assert run.trace.makespan_s == pytest.approx(expected)
    assert run.trace.label == "emulated"
