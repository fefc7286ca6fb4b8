"""What a measured profile says of bytes: outputs, parameters, what backwards save, skips."""

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import pipekit
from pipekit import models, schedules
from pipekit.layers.skips import Skippable
from pipekit.models.transformer import Block
from pipekit.profiling import Profile, SkipProfile
from pipekit.trees import Tree, differentiable, leaves
from tests.profiling.test_measured import linear_relu_linear, profile


class TestSizes:
    def test_bytes_and_operations_are_those_of_the_layers(self) -> None:
        made = profile(linear_relu_linear(), torch.rand(5, 8), repeats=1)
        assert made.rows == 5
        assert made.input_bytes == 5 * 8 * 4
        assert [layer.name for layer in made.layers] == ["0 Linear", "1 ReLU", "2 Linear"]
        assert [layer.output_bytes for layer in made.layers] == [5 * 16 * 4, 5 * 16 * 4, 5 * 4 * 4]
        assert [layer.parameter_bytes for layer in made.layers] == [9 * 16 * 4, 0, 17 * 4 * 4]
        assert [layer.flops for layer in made.layers] == [2 * 5 * 8 * 16, 0, 2 * 5 * 16 * 4]

    @pytest.mark.parametrize(
        ("model", "sample", "saved", "outputs"),
        [
            (linear_relu_linear(), (8,), [0, 16, 0], [False, True, False]),
            (
                nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4)),
                (8,),
                [16, 0, 0],
                [True, True, False],
            ),
            (
                nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 4)),
                (1, 8, 8),
                [72, 0, 0],
                [True, True, False],
            ),
        ],
        ids=["saved by two", "edited in place", "viewed"],
    )
    def test_memory_counts_once_and_where_it_was_made(
        self, model: nn.Sequential, sample: tuple[int], saved: list[int], outputs: list[bool]
    ) -> None:
        made = profile(model, torch.rand(5, *sample), repeats=1)
        assert [layer.saved_bytes for layer in made.layers] == [5 * n * 4 for n in saved]
        assert [layer.saves_output for layer in made.layers] == outputs

    def test_buffers_and_frozen_parameters_are_counted_apart(self) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        model[0].bias.requires_grad_(False)
        made = profile(model, torch.rand(5, 8), repeats=1)
        assert [layer.parameter_bytes for layer in made.layers] == [8 * 8 * 4, 2 * 8 * 4]
        assert [layer.buffer_bytes for layer in made.layers] == [8 * 4, 2 * 8 * 4 + 8]


class Halve(Skippable):
    """Stashes what the next layer gets too, and other memory, which nobody saves."""

    stashes = ("same", "own")

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, columns // 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x).tanh()
        self.stash("same", y)
        self.stash("own", y.double() + 1)
        return y


class Add(Skippable):
    pops = ("same", "own")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pop("same") + self.pop("own").float()


def skipping() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 16),
        Halve(16).isolate("outer"),
        Halve(8).isolate("inner"),
        nn.Linear(4, 4),
        Add().isolate("inner"),
        nn.Linear(4, 8),
        Add().isolate("outer"),
        nn.Linear(8, 2),
    )


class TestSkips:
    def test_each_has_its_ends_and_its_bytes(self) -> None:
        assert profile(skipping(), torch.rand(5, 8), repeats=1).skips == (
            SkipProfile("inner/same", 2, 4, 5 * 4 * 4, saved=True),
            SkipProfile("inner/own", 2, 4, 5 * 4 * 8, saved=False),
            SkipProfile("outer/same", 1, 6, 5 * 8 * 4, saved=True),
            SkipProfile("outer/own", 1, 6, 5 * 8 * 8, saved=False),
        )

    def test_unmatched_ones_are_refused(self) -> None:
        with pytest.raises(ValueError, match="which no layer pops"):
            profile(skipping()[:5], torch.rand(5, 8), repeats=1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.inner(x))


IMAGES = torch.rand(2, 3, 8, 8)
ROWS = torch.rand(4, 8)
TOKENS = torch.rand(2, 6, 8)
CHAINS: dict[str, tuple[nn.Sequential, Tree]] = {
    "in-place ReLU": (nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)), ROWS),
    "in-place ReLU of a view": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(144, 2)),
        IMAGES,
    ),
    "in-place ReLU first": (
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Sigmoid()),
        ROWS,
    ),
    "batch norm": (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()), ROWS),
    "dropout": (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)), ROWS),
    "max-pool": (
        nn.Sequential(
            *(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ),
        IMAGES,
    ),
    "residual block": (nn.Sequential(nn.Conv2d(3, 4, 1), Residual(4), Residual(4)), IMAGES),
    "attention": (
        nn.Sequential(
            nn.Linear(8, 8),
            Block(8, 2, causal=True, norm="pre", dropout=0.1),
            Block(8, 2, causal=False, norm="post"),
        ),
        TOKENS,
    ),
    "skips": (skipping(), ROWS),
    "U-Net": (models.unet(1, 2), torch.rand(1, 3, 64, 64)),
    "GPT": (models.gpt(2, 8, 2, vocabulary=32, sequence=6), torch.randint(32, (2, 6))),
    "BERT": (models.bert_large(1, 8, 2, vocabulary=32, sequence=6), torch.randint(32, (2, 6))),
    "S2VT": (
        models.s2vt(vocabulary=20, features=8, embedding=4, hidden=6),
        (torch.rand(2, 3, 8), torch.randint(20, (2, 4))),
    ),
    "an output of which a part is passed on": (
        nn.Sequential(nn.Linear(8, 16), nn.GLU(), nn.Linear(8, 8), nn.Softmax(1)),
        ROWS,
    ),
}


def saved_by_a_stage(model: nn.Sequential, x: Tree) -> int:
    """Return the bytes of all storages that the graph of an undivided stage holds alive."""
    held: dict[StorageWeakRef, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        return tensor

    stage = copy.deepcopy(model).train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = stage(x)
    apart = [*stage.parameters(), *stage.buffers(), *leaves(x)]
    for tensor in apart:
        held.pop(StorageWeakRef(tensor.untyped_storage()), None)
    assert differentiable(output)[0].requires_grad
    return sum(held.values())


@cache
def profiled(name: str) -> Profile:
    return profile(*CHAINS[name], repeats=1)


@pytest.mark.parametrize("name", CHAINS)
def test_saved_bytes_are_those_of_a_real_stage(name: str) -> None:
    model, sample = CHAINS[name]
    made = profiled(name)
    saved = saved_by_a_stage(model, copy.deepcopy(sample))
    assert made.stage(0, len(made)).saved_bytes == saved
    assert saved > 0


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_layers_give_as_many_bytes_as_a_run_sends(dtype: torch.dtype | None) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    made = profile(model, torch.ones(2, 8), repeats=1, autocast=dtype)
    size = 2 if dtype else 4
    assert [layer.output_bytes for layer in made.layers] == [2 * n * size for n in (16, 16, 4)]
    schedule = schedules.flush(3, 2).take(1)
    pipeline = pipekit.Pipeline(
        model,
        schedule,
        balance=[1, 1, 1],
        optimizer=torch.optim.SGD,
        loss=nn.MSELoss(),
        # a GPU's autocast keeps what LayerNorm gives in float32, the profile's CPU does not
        execution=pipekit.Execution(autocast=dtype, devices=["cpu"] * 3),
    )
    ran = pipeline.train([(torch.ones(4, 8), torch.ones(4, 4))]).trace.frame
    simulated = pipekit.simulate(schedule, made).frame
    both = ran.merge(simulated, on=["op", "stage", "microbatch"])
    assert len(both) == len(ran)
    assert both["bytes_x"].tolist() == both["bytes_y"].tolist()
