"""Profiles from shapes, and with other costs."""

import torch

from experiments.study.costs import estimated, images, published, recomputed_late, with_costs
from pipekit import models
from pipekit.clusters import V100
from pipekit.profiling import Profile


def test_nothing_is_computed_and_a_published_network_is_known_by_name() -> None:
    found = estimated(models.resnet50, images(2, 224), V100)
    assert found.rows == 2
    assert found.parameter_bytes == 4 * sum(
        p.numel() for p in models.resnet50(device="meta").parameters()
    )
    assert published("resnet50", 2, V100).layers == found.layers
    assert images(2, 8)().shape == torch.Size([2, 3, 8, 8])


def test_only_the_named_costs_change_and_see_the_layer_as_it_was() -> None:
    profile = Profile.uniform(2, 1.0, 2.0, output_bytes=8)
    swapped = with_costs(
        profile, forward_s=lambda x: x.backward_s, backward_s=lambda x: x.forward_s
    )
    assert [(x.forward_s, x.backward_s, x.output_bytes) for x in swapped.layers] == [(2, 1, 8)] * 2
    assert [x.backward_s for x in recomputed_late(profile).layers] == [3, 3]
