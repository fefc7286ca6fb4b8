"""Published seconds of networks, and of their layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.study.published_times import LayerTime, NetworkTime, as_published, network_times
from pipekit.clusters import TITAN_X, V100
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
        as_published(LAYERS, "s2vt", V100)


NETWORKS = [network for (network, _), known in network_times().items() if known.layers]


class TestLayers:
    @pytest.mark.parametrize("network", NETWORKS)
    def test_together_they_take_what_the_network_does(self, network: str) -> None:
        known = network_times()[network, V100.name]
        forward_s = sum(layer.forward_s for layer in known.layers)
        backward_s = sum(layer.backward_s for layer in known.layers)
        assert (forward_s, backward_s) == pytest.approx((known.forward_s, known.backward_s))

    def test_of_another_network_they_are_refused(self) -> None:
        with pytest.raises(ValueError, match="published of vgg16 have not the profile's 0 bytes"):
            as_published(LAYERS, "vgg16", V100)

    @given(st.data())
    def test_each_run_that_both_cut_alike_takes_what_was_published(
        self, data: st.DataObject
    ) -> None:
        """Of layers cut finer or coarser, every run of bytes with ends in both has its time."""
        sizes = data.draw(st.lists(st.sampled_from([0, 8, 16, 24]), min_size=1, max_size=8))
        sizes[0] = sizes[0] or 8
        times = [LayerTime(float(n + 1), float(2 * n + 1), size) for n, size in enumerate(sizes)]
        known = NetworkTime(0, 0, "", tuple(times))
        ends = [place for place, size in enumerate(sizes) if place and size]
        cuts = sorted(data.draw(st.sets(st.sampled_from(ends)))) if ends else []
        spans = list(zip([0, *cuts], [*cuts, len(sizes)], strict=True))
        coarse = (
            LayerProfile("", 1.0, 1.0, parameter_bytes=sum(sizes[start:stop]))
            for start, stop in spans
        )
        with pytest.MonkeyPatch.context() as patch:
            place = "experiments.study.published_times.network_times"
            patch.setattr(place, lambda: {("x", V100.name): known})
            found = as_published(Profile(tuple(coarse)), "x", V100)
        for layer, (start, stop) in zip(found.layers, spans, strict=True):
            assert layer.forward_s == pytest.approx(sum(t.forward_s for t in times[start:stop]))
            assert layer.backward_s == pytest.approx(sum(t.backward_s for t in times[start:stop]))
