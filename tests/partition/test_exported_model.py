"""What torch.export makes of a module: a graph for all sizes; and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.stages import stages
from tests.partition.networks import Tied, Twice, UNet
from tests.partition.test_record_refusals import (
    Between,
    X,
    branches,
    custom,
    hooks,
    reads,
    remembers,
    selects,
    takes_half,
)


def test_layers_end_where_blocks_end() -> None:
    layers = stages(Twice(), torch.randn(6, 16), way="export")
    assert layers.summary is not None
    assert [layer.modules for layer in layers.summary.layers] == [
        ("blocks.0.0",), ("blocks.0.1",), ("blocks.1.0",), ("blocks.1.1",),
        ("blocks.0.0",), ("blocks.0.1",), ("blocks.2.0",), ("blocks.2.1",), ("head",),
    ]  # fmt: skip


def test_a_block_is_named_by_hand() -> None:
    layers = stages(Twice(), torch.randn(6, 16), ["blocks.0", "blocks.1"], way="export")
    assert layers.summary is not None
    first, second, *_ = layers.summary.layers
    assert (first.modules, second.modules) == (("blocks.0",), ("blocks.1",))
    assert first.operations >= 2


def test_names_and_tensors_are_the_models() -> None:
    model = Tied()
    layers = stages(model, torch.randint(50, (4, 7)), way="export")
    assert layers.state_dict().keys() == model.state_dict().keys()
    assert {id(p) for p in layers.parameters()} == {id(p) for p in model.parameters()}
    assert "tied" not in str(layers)  # one name: the two uses are one parameter's


def test_one_graph_is_for_training_and_evaluation_of_all_sizes() -> None:
    model = UNet()
    layers = stages(model, torch.randn(3, 1, 16, 16), way="export")
    for training in (True, False):
        model.train(training), layers.train(training)
        for shape in ((5, 1, 16, 16), (2, 1, 24, 40), (1, 1, 32, 16)):
            x = torch.randn(shape)
            assert torch.equal(layers(x)["logits"], model(x)["logits"])
    with pytest.raises(ValueError, match=r"exported for batches with .*, and this one has length"):
        layers(torch.randn(2, 1, 20, 16))  # what goes down and up again has another length then


class Looks(nn.Module):
    """Looks rows up in a second tensor, which torch never compares with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        first, second, last = self.blocks
        y: Tensor = last(second(first(x)) * table[torch.arange(x.shape[0])])
        return y


def test_several_tensors_have_rows() -> None:
    model, batch = Looks(), (torch.randn(4, 4), torch.randn(4, 4))
    layers = stages(model, batch, way="export")
    more = (torch.randn(7, 4), torch.randn(7, 4))
    assert torch.equal(layers(more), model(*more))


def fixed_windows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], 3, 2, 4, 2, 4).reshape(x.shape)


def patches(x: Tensor) -> Tensor:
    """As many as there is room for: an image of any size is cut."""
    rows, channels, height, width = x.shape
    across = -(-width // 2)
    cut = x.reshape(rows * channels * (height // 2), 2, across, 2).transpose(1, 2)
    cut = cut.reshape(rows, channels, -1, 4).transpose(1, 3) * 2
    cut = cut.transpose(1, 3).reshape(-1, across, 2, 2).transpose(1, 2)
    return cut.reshape(rows, channels, height, across * 2)


@pytest.mark.parametrize("cut", [fixed_windows, patches])
def test_images_that_are_cut_keep_their_size(cut: Callable[[Tensor], Tensor]) -> None:
    """Else torch's solver reasons about them for a quarter of an hour, and more."""

    class Cuts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(cut(x))
            return x

    layers = stages(Cuts(), torch.randn(3, 3, 8, 8), way="export")
    assert layers(torch.randn(5, 3, 8, 8)).shape == (5, 3, 8, 8)
    with pytest.raises(ValueError, match=r"tensors \[rows, 3, 8, 8\]"):
        layers(torch.randn(2, 3, 16, 16))


def test_views_that_keep_height_and_width_leave_them_free() -> None:
    class Shuffles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                rows, _, height, width = x.shape
                x = block(x.view(rows, 2, 2, height, width).transpose(1, 2).reshape(x.shape))
            return x.flatten(2)

    layers = stages(Shuffles(), torch.randn(3, 4, 8, 8), way="export")
    assert layers(torch.randn(2, 4, 6, 9)).shape == (2, 4, 54)


def shares(model: Any, x: Tensor) -> Tensor:
    return x * (1 / x.shape[0])


def halves(model: Any, x: Tensor) -> Tensor:
    half = x.shape[0] // 2
    return torch.cat([x[:half] * 2, x[half:]])


@pytest.mark.parametrize("function", [shares, halves])
def test_what_counts_rows_in_python_may_be_exported(function: Callable[[Any, Tensor], Any]) -> None:
    model = Between(function)
    layers = stages(model, X, way="export")
    assert len(layers) == 3
    assert torch.equal(layers(X[:5]), model(X[:5]))


def checkpoints_once(model: Any, x: Tensor) -> Tensor:
    return checkpoint(model.blocks[1], x, use_reentrant=False) + 1  # type: ignore[no-any-return]


def checkpoints_again(model: Any, x: Tensor) -> Tensor:
    return checkpoint(model.blocks[1], x, use_reentrant=True) + 1  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (takes_half, r"holds the number of rows to be 6 .*x.shape\[0\] in place of len\(x\)"),
        (branches, r"torch.export refuses the model in training mode .*way='record'"),
        (reads, r"test_record_refusals.py:\d+ reads numbers of a tensor .*way='record'"),
        (selects, r"makes a tensor whose size depends on them"),
        (remembers, r"the forward of Between changes 'last'.*buffer"),
        (custom, r"autograd function _Doubled, .*way='record'"),
        (checkpoints_once, r"torch.utils.checkpoint .*recompute='always'"),
        (checkpoints_again, r"CheckpointFunction, .*use_reentrant=False"),
        (hooks, r"register_hook at test_record_refusals.py:\d+ .*way='record'"),
    ],
)
def test_what_a_graph_would_lose_is_refused(
    function: Callable[[Any, Tensor], Any], sentence: str
) -> None:
    with pytest.raises(NotRecordable, match=sentence):
        stages(Between(function), X, way="export")


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_hooks_of_modules_are_refused(kind: str) -> None:
    model = Twice()
    getattr(model.blocks[1], f"register_{kind}")(lambda *args: None)
    with pytest.raises(NotRecordable, match=r"blocks.1 has .*hooks.*way='record'"):
        stages(model, torch.randn(4, 16), way="export")


def test_state_in_a_block_is_refused() -> None:
    class Counts(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return super().forward(x)

    with pytest.raises(NotRecordable, match=r"the forward of 1 changes 'calls'"):
        stages(nn.Sequential(nn.Linear(4, 4), Counts(4, 4), nn.Linear(4, 4)), X, way="export")


def test_a_batch_of_sizes_that_were_excluded_is_refused_when_it_comes() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] > 8:
                raise ValueError("too long")
            for block in self.blocks:
                x = block(x[..., None])[..., 0]
            return x

    layers = stages(Halves(), torch.randn(3, 6), way="export")
    layers(torch.randn(7, 8))
    with pytest.raises(ValueError, match=r"exported for batches with .*length.*, and this one has"):
        layers(torch.randn(3, 9))


@pytest.mark.parametrize("way", ["record", "export"])
def test_no_grad_and_autocast_between_blocks_are_kept(way: str) -> None:
    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            first, second, third = self.blocks
            with torch.no_grad():
                scale = first(x).abs() + 1
            y = second(x) * scale
            with torch.autocast("cpu", enabled=False):
                y = third(y.float()) @ y.float().mT
            with torch.autocast("cpu", torch.bfloat16):
                y = y @ y
            return y  # type: ignore[no-any-return]

    model = Modes()
    layers = stages(model, X, way=way)
    with torch.autocast("cpu", torch.bfloat16):
        assert layers(X).dtype == model(X).dtype
        assert torch.equal(layers(X), model(X))


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="way must be"):
        stages(Twice(), torch.randn(4, 16), way="replay")


def few_rows(model: Any, x: Tensor) -> Tensor:
    if x.shape[0] > len(X):
        raise RuntimeError("too many rows")
    return x


def test_what_fails_with_other_sizes_is_said() -> None:
    with pytest.raises(NotRecordable, match=r"unsplit model fails in .* too many rows\); use way="):
        stages(Between(few_rows), X, way="export")
