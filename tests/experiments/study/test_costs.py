"""Profiles from shapes, with other costs, and at another pace."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.study.costs import (
    as_published,
    emulate_at_pace,
    faster_links,
    images,
    published,
    published_times,
    recomputed_late,
    stretched,
    with_costs,
)
from pipekit import models, simulate
from pipekit.clusters import TITAN_X, V100, flat
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, flush, replicate
from tests.emulation.own_time import own_time


def test_nothing_is_computed_and_a_published_network_is_known_by_name() -> None:
    found = published("alexnet", 2, V100)
    assert found.rows == 2
    assert found.parameter_bytes == 4 * sum(
        p.numel() for p in models.alexnet(device="meta").parameters()
    )
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


LAYERS = Profile((LayerProfile("a", 1, 3), LayerProfile("b", 3, 3)), rows=32)


def test_milliseconds_of_a_batch_become_seconds_of_an_image() -> None:
    known = published_times("vgg16", TITAN_X.name).iloc[0]
    assert 16e3 * (known["forward_s"] + known["backward_s"]) == pytest.approx(128.62)
    assert "cnn-benchmarks" in known["source"]


def test_a_profile_takes_what_was_published_and_its_layers_keep_their_shares() -> None:
    found = as_published(LAYERS, "vgg16", TITAN_X)
    first, second = found.layers
    assert first.forward_s + second.forward_s == pytest.approx(2 * 41.59e-3)
    assert first.backward_s + second.backward_s == pytest.approx(2 * 87.03e-3)
    assert second.forward_s == pytest.approx(3 * first.forward_s)


def test_what_nobody_published_is_not_made_up() -> None:
    assert as_published(LAYERS, "s2vt", V100) is LAYERS


class TestLayers:
    def test_together_they_take_what_the_network_does(self) -> None:
        folder, key = Path(__file__).parents[3] / "data/profiles", ["network", "device", "images"]
        layers, networks = (
            pd.read_csv(folder / name).groupby(key)[["forward_ms", "backward_ms"]].sum()
            for name in ("layer_times.csv", "network_times.csv")
        )
        assert layers.to_numpy() == pytest.approx(networks.loc[layers.index].to_numpy())

    def test_of_another_network_they_are_refused(self) -> None:
        with pytest.raises(ValueError, match="published of vgg16 have not the profile's 0 bytes"):
            as_published(LAYERS, "vgg16", V100)

    @given(st.data())
    def test_each_run_that_both_cut_takes_what_was_published(self, data: st.DataObject) -> None:
        """Of layers cut finer or coarser, every run of bytes with ends in both has its time."""
        sizes = data.draw(st.lists(st.sampled_from([0, 8, 16, 24]), min_size=1, max_size=8))
        sizes[0] = sizes[0] or 8
        numbers = np.arange(len(sizes))
        times = {"forward_s": numbers + 1.0, "backward_s": 2.0 * numbers + 1}
        known = pd.DataFrame(times | {"parameter_bytes": sizes})
        ends = [place for place, size in enumerate(sizes) if place and size]
        cuts = sorted(data.draw(st.sets(st.sampled_from(ends)))) if ends else []
        spans = list(zip([0, *cuts], [*cuts, len(sizes)], strict=True))
        coarse = (
            LayerProfile("", 1.0, 1.0, parameter_bytes=sum(sizes[start:stop]))
            for start, stop in spans
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("experiments.study.costs.published_times", lambda *_: known)
            found = as_published(Profile(tuple(coarse)), "x", V100)
        for layer, (start, stop) in zip(found.layers, spans, strict=True):
            assert layer.forward_s == pytest.approx(times["forward_s"][start:stop].sum())
            assert layer.backward_s == pytest.approx(times["backward_s"][start:stop].sum())
