"""Published seconds of networks."""

import pytest

from pipekit.clusters import TITAN_X, V100
from pipekit.papers.published_times import as_published, network_times
from pipekit.profiling import LayerProfile, Profile

LAYERS = Profile((LayerProfile("a", 1, 3), LayerProfile("b", 3, 3)), rows=32)


def test_milliseconds_of_a_batch_become_seconds_of_an_image() -> None:
    known = network_times()["vgg16", TITAN_X.name]
    assert 16e3 * known.seconds == pytest.approx(128.62)
    assert "cnn-benchmarks" in known.source


def test_a_profile_takes_what_was_published_and_its_layers_keep_their_shares() -> None:
    found = as_published(LAYERS, "vgg16", TITAN_X)
    first, second = found.layers
    assert first.forward_s + second.forward_s == pytest.approx(2 * 41.59e-3)
    assert first.backward_s + second.backward_s == pytest.approx(2 * 87.03e-3)
    assert second.forward_s == pytest.approx(3 * first.forward_s)


def test_what_nobody_published_is_not_made_up() -> None:
    with pytest.raises(KeyError):
        as_published(LAYERS, "vgg16", V100)
