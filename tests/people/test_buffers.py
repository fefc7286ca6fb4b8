"""Buffers that a forward edits and reads, and recomputation."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import different
from tests.people.plain import (
    CE,
    SGD,
    assert_as_plain,
    batches,
    multiplied,
    network,
    pipe,
    plain_loop,
)

Build = Callable[[], nn.Module]


class Steps(nn.Module):
    """Warms up by a counter."""

    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.n += int(self.training)
        return multiplied(self.linear(x), 1 + self.n * 0.1)


class Replaced(Steps):
    """Gives its buffer another tensor."""

    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + int(self.training)
        return multiplied(self.linear(x), 1 + self.n * 0.1)


class Observed(Steps):
    """Edits its buffer without a version, as observers of quantization do."""

    def forward(self, x: Tensor) -> Tensor:
        self.n.data += int(self.training)
        return multiplied(self.linear(x), 1 + self.n * 0.1)


class Codebook(nn.Module):
    """VQ, with a codebook that follows its inputs."""

    code: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("code", torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.code).argmin(1)
        quantized = self.code[nearest]
        if self.training:
            self.code.index_add_(0, nearest, 0.1 * (x.detach() - quantized))
        return x * quantized.sigmoid()


class Experts(nn.Module):
    """Balances its load by a bias that is no weight (DeepSeek-V3, section 2.1.2)."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.zeros(4), persistent=False)
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        chosen = (scores + self.bias).argmax(-1)
        load = torch.bincount(chosen, minlength=4).float()
        if self.training:
            self.bias += 0.2 * (load.mean() - load).sign()
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        rows = torch.arange(len(x))
        return multiplied(outputs[rows, chosen], scores[rows, chosen, None])


class Shared(nn.Module):
    """Reads and edits a buffer of another layer."""

    n: Tensor

    def __init__(self, counter: Steps) -> None:
        super().__init__()
        self.register_buffer("n", counter.n)

    def forward(self, x: Tensor) -> Tensor:
        self.n += int(self.training)
        return multiplied(x, 1 + self.n * 0.1)


def spectral() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(8, 8))


def cumulative_norm() -> nn.Module:
    return nn.BatchNorm1d(8, momentum=None)


def two_that_share() -> nn.Module:
    first = Steps()
    return nn.Sequential(first, Shared(first))


KEEPERS = [Steps, Replaced, Observed, Codebook, Experts, spectral, cumulative_norm, two_that_share]


@pytest.mark.parametrize("build", KEEPERS)
@pytest.mark.parametrize("recompute", ["always", "except_last"])
def test_recomputation_reads_the_buffers_of_the_forward(build: Build, recompute: Any) -> None:
    assert_as_plain(network(build()), execution=pk.Execution(recompute=recompute))


@pytest.mark.parametrize("build", KEEPERS)
def test_a_pipelined_module_reads_them_too(build: Build) -> None:
    model, data = network(build()), batches()
    found = []
    for how in "never", "except_last":
        module = pk.PipelinedModule(copy.deepcopy(model), [2, 1], chunks=4, checkpoint=how)
        plain_loop(module, SGD, CE, data)
        found.append(module.state_dict())
    assert different(found[0], found[1]) == []


@pytest.mark.parametrize("build", [Steps, Codebook, spectral])
def test_stale_weights_do_not_change_this(build: Build) -> None:
    model, data = network(build()), batches(5)
    found = []
    for recompute in "never", "always":
        pipeline = pipe(
            copy.deepcopy(model),
            schedules.two_bw(2, 4),
            execution=pk.Execution(recompute=recompute),
        )
        pipeline.train(data)
        found.append(pipeline.state_dict())
    assert different(found[0], found[1]) == []


@pytest.mark.slow
def test_processes_recompute_alike() -> None:
    how = pk.Execution(recompute="always")
    assert_as_plain(network(Steps()), transport="distributed", execution=how).close()


class Later(nn.Module):
    """Begins to edit its buffer when training is under way."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.mean() > 5:
            self.scale += 0.1
        return multiplied(self.linear(x), self.scale)


def test_a_buffer_that_is_edited_later_only_is_warned_of() -> None:
    data = [*batches(1), *((x + 10, y) for x, y in batches(1))]
    pipeline = pipe(
        nn.Sequential(Later(), nn.Linear(8, 3)),
        balance=[1, 1],
        execution=pk.Execution(recompute="always"),
    )
    with pytest.warns(UserWarning, match=r"buffer 'scale' that later forwards .*recompute='never'"):
        pipeline.train(data)


class Late(nn.Module):
    """Registers in its first forward what it needs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "made"):
            made = torch.ones(x.shape[1:])
            if self.kind == "buffer":
                self.register_buffer("made", 2.0 * made)
            else:
                self.made = nn.Parameter(made)
        return x * self.made


def test_a_buffer_may_be_made_in_the_first_forward() -> None:
    late, before = (network(Late("buffer")) for _ in range(2))
    before.load_state_dict(late.state_dict())
    before(torch.zeros(2, 8))
    data, (one, other) = batches(), (pipe(model) for model in (late, before))
    assert one.train(data).losses == other.train(data).losses


def test_a_parameter_may_not() -> None:
    with pytest.raises(ValueError, match=r"makes the parameter '1.made'.*model\(example\)"):
        pipe(network(Late("parameter"))).train(batches())
