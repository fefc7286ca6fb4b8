"""torchgpipe's Table 3: deep profiles, the search, the structure, and bytes of real training."""

from functools import partial

import pytest
import torch
from torch import nn

from pipekit.clusters.papers import P40
from pipekit.models import unet
from pipekit.papers.torchgpipe import memory
from pipekit.papers.torchgpipe.settings import TABLE3, Benchmark
from pipekit.profiling import Profile


@pytest.mark.parametrize("convolutions", [2, 3, 5])
def test_a_deep_profile_is_that_of_the_deep_network(convolutions: int) -> None:
    estimated = Profile.analytic(
        unet(convolutions, 6, device="meta"), torch.empty(1, 3, 192, 192), P40
    )
    assert memory.profile_of(convolutions, 6) == estimated


def test_a_row_of_table_3() -> None:
    row = memory.table3_row(TABLE3[0])
    assert row.parameters == 362_157_516
    assert row.weights == pytest.approx(8 * row.parameters / 2**30)
    assert row.weights < row.total == row.fullest < 22
    assert row.size == (6, 72)


def test_the_largest_network_fits_and_the_next_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 GiB a convolution, on a device of 22 GiB.
    monkeypatch.setattr(memory, "profile_of", lambda b, c: Profile.uniform(b))
    monkeypatch.setattr(
        memory, "peak_bytes", lambda profile, plan, m: [len(profile) * 2**30, 2**30]
    )
    assert memory.most_convolutions(Benchmark("by hand", "unet-1-8", 1, 1, (1,), "never")) == 22
    assert memory.most_convolutions(Benchmark("by hand", "unet-40-8", 1, 1, (1,), "never")) == 22


@pytest.mark.parametrize(("convolutions", "channels"), [(1, 4), (3, 7)])
def test_our_unet_is_symmetric(convolutions: int, channels: int) -> None:
    assert memory.is_symmetric(convolutions, channels)


def test_another_unet_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(convolutions: int, channels: int, device: str) -> nn.Sequential:
        return unet(convolutions, channels + 2, device=device)

    monkeypatch.setattr(memory, "unet", wider)
    assert not memory.is_symmetric(1, 4)


def test_gpt2_has_the_published_parameters() -> None:
    # GPT-2 small, as published: 124,439,808.
    assert memory.gpt2_parameters(12, 768, 50_257, 1024) == 124_439_808


def test_bytes_of_real_training_are_predicted() -> None:
    torch.manual_seed(0)
    frame = memory.measured_beside_simulated(
        unet(1, 4),
        torch.rand(4, 3, 64, 64),
        torch.rand(4, 1, 64, 64),
        stages=2,
        microbatches=2,
        recompute="except_last",
        loss=nn.BCEWithLogitsLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    assert list(frame["worker"]) == [0, 1]
    assert frame["simulated"].to_numpy() == pytest.approx(frame["measured"].to_numpy(), rel=0.05)
