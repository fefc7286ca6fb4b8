"""The engine judged: every method's weights equal those of its update equation bit for bit."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, StepLR

from pipekit import Watch, oracle
from pipekit.schedules import check
from tests.engine.examples import (
    METHODS,
    MODELS,
    OPTIMIZERS,
    Batches,
    by_equations,
    cut,
    data,
    different,
    mixed,
    mlp,
    pipeline,
    trained,
    unlike,
)
from tests.people.test_torchgpipe import Calls


def step_lr(optimizer: Optimizer) -> LRScheduler:
    return StepLR(optimizer, step_size=1, gamma=0.5)


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    """Changes the momentum too."""
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=20)


def assert_follows_equations(
    model: nn.Sequential, batches: Batches, method: str, balance: list[int], **options: Any
) -> None:
    """After every update: train on the first batch, the first two, ... and compare each time."""
    truth = by_equations(model, batches, method, balance, **options)
    for n in range(1, len(batches) + 1):
        pipe = pipeline(model, method, balance, **options)
        losses, state = trained(pipe, batches[:n], watch=Watch(trace=False))
        assert losses == truth.losses[:n]
        # The equations keep all weights that ever were, but of buffers only the last.
        buffers = truth.buffers if n == len(batches) else {k: state[k] for k in truth.buffers}
        assert different(state, truth.weights[n] | buffers) == []


@settings(max_examples=4)
@given(data_=st.data())
@pytest.mark.parametrize("method", METHODS)
def test_weights_and_losses_are_the_equations_bit_for_bit(
    method: str, data_: st.DataObject
) -> None:
    draw = data_.draw
    model = MODELS[draw(st.sampled_from(sorted(MODELS)), "model")]()
    balance = cut(8, draw(st.sets(st.integers(1, 7), max_size=5), "edges"))
    low = len(balance) if method == "2bw" else 1
    m = draw(st.integers(low, low + 3), "microbatches")
    least = 2 * m if METHODS[method].divides else 2  # batch norm needs two rows
    rows = draw(st.lists(st.integers(least, least + 3), min_size=1, max_size=4), "rows")
    name = draw(st.sampled_from(sorted(OPTIMIZERS)), "optimizer")
    schedulers = [None, step_lr, *([one_cycle] if name == "nesterov" else [])]
    stashing = method != "no_stashing"
    assert_follows_equations(
        model,
        data(rows=rows),
        method,
        balance,
        m=m,
        optimizer=OPTIMIZERS[name],
        lr_scheduler=draw(st.sampled_from(schedulers), "lr_scheduler"),
        clip_norm=draw(st.sampled_from([None, 0.1]), "clip_norm") if stashing else None,
        seed=draw(st.integers(0, 3), "seed"),
        recompute=draw(st.sampled_from(["never", "except_last", "always"]), "recompute")
        if stashing
        else "never",
    )


@pytest.mark.parametrize("method", METHODS)
def test_ten_rows_in_four_microbatches(method: str) -> None:
    assert_follows_equations(mixed(), data(2, rows=10), method, [2, 3, 3])


@pytest.mark.parametrize("method", ["gpipe", "flush"])
def test_fewer_microbatches_than_stages(method: str) -> None:
    assert_follows_equations(mlp(6, 6, 6, 6, 6, 6, 3), data(2), method, [1] * 6, m=2)


@pytest.mark.parametrize("method", ["flush", "2bw", "pipedream"])
def test_one_stage(method: str) -> None:
    assert_follows_equations(mixed(), data(3), method, [8])


def test_without_stashing_differs_from_every_true_gradient() -> None:
    """Three stages: what it applies is no gradient at the forward's weights nor at the newest."""
    model, batches, balance = mlp(6, 6, 6, 3), data(8), [1, 1, 1]
    options: dict[str, Any] = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.25)}
    pipe = pipeline(model, "no_stashing", balance, **options)
    pipe.train(batches)
    stashed = by_equations(model, batches, "pipedream", balance, **options)
    own = by_equations(model, batches, "no_stashing", balance, **options)
    got = pipe.state_dict()
    assert different(got, own.weights[-1]) == []
    assert different(got, stashed.weights[-1]) == sorted(got)

    # The third update, on its own: from the weights before it, against both true gradients.
    pipe = pipeline(model, "no_stashing", balance, **options)
    pipe.train(batches[:3])
    applied = {k: (own.weights[2][k] - v) * 4 for k, v in pipe.state_dict().items()}
    forward = {k: own.weights[{"0": 0, "1": 1, "2": 2}[k[0]]][k] for k in got}
    for weights in (forward, own.weights[2]):
        fresh = mlp(6, 6, 6, 3)
        fresh.load_state_dict(weights)
        true = oracle.train(
            fresh, batches[2:3], method="sequential", balance=[3], loss=nn.MSELoss(), **options
        ).gradients[0]
        assert not torch.allclose(applied["0.weight"], true["0.weight"], atol=1e-3)


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="sum"), nn.L1Loss()], ids=str)
def test_losses(loss: nn.Module) -> None:
    assert_follows_equations(mixed(), data(3, rows=10), "flush", [4, 4], loss=loss)


def test_a_mean_stays_the_mean_of_the_whole_batch() -> None:
    """10 rows in 4 microbatches are 3, 3, 2, 2: weighted by rows, as one pass over the batch."""
    model, batches = mlp(6, 6, 3), data(1, rows=10)
    run = pipeline(model, "gpipe", [1, 1]).train(batches)
    (x, y), whole = batches[0], nn.MSELoss()
    assert run.losses[0] == pytest.approx(whole(model(x), y).item(), rel=1e-6)


# --- What crosses a boundary ---------------------------------------------------------------------


class Branches(nn.Module):
    """Two tensors, of which a later stage may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"left": self.left(x), "rest": [self.right(x), (x > 0, x.argmax(1))]}


def select(x: dict[str, Any]) -> Tensor:
    """Use everything: floats, a mask and indices."""
    right, (mask, index) = x["rest"]
    y: Tensor = x["left"] * mask + right.gather(1, index[:, None])
    return y


FUNCTIONS: dict[str, Callable[[Any], Tensor]] = {
    "left": itemgetter("left"),
    "select": select,
    "transposed": lambda x: (x.t().contiguous().t() * 2).t().contiguous().t(),
    "expanded": lambda x: x[:, :1].expand(-1, 6),
    "strided": lambda x: torch.cat([x, x], 1)[:, ::2],
    "overlapping": lambda x: x.unfold(1, 5, 1)[:, :, 0].repeat(1, 3),
    "windows": lambda x: x.unfold(1, 5, 1),
    "all windows": lambda x: x.flatten(1)[:, :6],
    "view": lambda x: x.view(-1, 2, 3),
    "narrow": lambda x: x.flatten(1)[:, :6].tanh(),
    "edit": lambda x: x.mul_(2).add_(1),
    "sum": lambda x: x.sum(-1, keepdim=True).expand(-1, 6) if x.dim() == 2 else x.sum(-1),
}


def layers(*names: str) -> nn.Sequential:
    """A linear layer, named functions, and a linear layer."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 6), *map(apply, names), nn.Linear(6, 3))


def apply(name: str) -> Calls:
    return Calls(FUNCTIONS[name])


BOUNDARIES: dict[str, tuple[nn.Sequential, list[int]]] = {
    "mask and indices": (nn.Sequential(Branches(), apply("select"), nn.Linear(6, 3)), [1, 2]),
    "an unused tensor": (nn.Sequential(Branches(), apply("left"), nn.Linear(6, 3)), [1, 2]),
    "pass through": (nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 3)), [1, 1, 1]),
    "transposed": (layers("transposed"), [2, 1]),
    "expanded": (layers("expanded"), [2, 1]),
    "expanded gradient": (layers("sum"), [1, 2]),
    "strided": (layers("strided"), [2, 1]),
    "overlapping windows": (layers("windows", "all windows"), [2, 2]),
    "view of the input": (layers("view", "narrow"), [1, 1, 1, 1]),
    "edited input": (layers("edit"), [1, 2]),
    "edited view of the input": (layers("view", "edit", "narrow"), [1, 3, 1]),
    "edited batch": (nn.Sequential(apply("edit"), nn.Linear(6, 3)), [1, 1]),
    "channels last": (
        nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)),
            nn.Conv2d(1, 4, 2, padding=1),
            nn.Conv2d(4, 4, 2).to(memory_format=torch.channels_last),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 1, (1, 1)),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        [2, 1, 1, 3],
    ),
}
BOUNDARIES["channels last"][0](torch.zeros(2, 6))  # the lazy layer takes its shape


@pytest.mark.parametrize(
    ("name", "transport", "recompute"),
    [
        *((name, "threads", "always") for name in BOUNDARIES),
        ("mask and indices", "distributed", "never"),
        ("overlapping windows", "distributed", "never"),
        ("edited batch", "threads", "never"),
    ],
)
@pytest.mark.filterwarnings("ignore:the model edits its input")  # "edited batch" does
def test_what_crosses_a_boundary(name: str, transport: str, recompute: str) -> None:
    model, balance = BOUNDARIES[name]
    batches = data(2, rows=10)
    kept = [x.clone() for x, _ in batches]
    copies, decay = [(x.clone(), y) for x, y in batches], OPTIMIZERS["sgd"]
    truth = by_equations(model, copies, "flush", balance, optimizer=decay)
    pipe = pipeline(
        model, "flush", balance, transport=transport, recompute=recompute, optimizer=decay
    )
    assert unlike(trained(pipe, batches), truth) == []
    assert all(torch.equal(x, before) for (x, _), before in zip(batches, kept, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_dtypes(dtype: torch.dtype, clip_norm: float | None) -> None:
    model = mixed().to(dtype)
    assert_follows_equations(
        model, data(3, dtype=dtype), "pipedream", [2, 3, 3], clip_norm=clip_norm
    )


def test_embeddings_of_integer_inputs() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(12, 3))
    batches = [(torch.randint(9, (8, 2)), y) for _, y in data(3)]
    assert_follows_equations(model, batches, "pipedream", [1, 1, 1])


def test_a_batch_of_several_tensors() -> None:
    summed = Calls(lambda x: x["a"] + x["b"][0] * x["b"][1])
    model = nn.Sequential(summed, nn.Linear(6, 3))
    batches: Batches = [({"a": x, "b": [x + 1, x]}, (y, y)) for x, y in data(3, rows=10)]
    assert_follows_equations(model, batches, "flush", [1, 1], loss=of_first)


def of_first(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(output, target[0])


# --- Layers that need care -----------------------------------------------------------------------


class Skippable(nn.Module):
    """A layer that leaves its weights out for rows with a negative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x if x.sum() < 0 else self.linear(x)
        return y


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_parameter_without_gradient_is_not_updated(clip_norm: float | None) -> None:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 6), Skippable(), Skippable(), nn.Linear(6, 3))
    x, y = torch.ones(8, 6), torch.zeros(8, 3)
    batches = [(x, y), (-x, y), (-3 * x, y), (x, y)]
    assert_follows_equations(model, batches, "2bw", [1, 2, 1], clip_norm=clip_norm)


class Counting(nn.Module):
    """A layer that puts a new tensor in the place of its buffer, as running averages may."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        y: Tensor = self.linear(x - self.average)
        return y


@pytest.mark.filterwarnings("ignore:the rows of a batch are not independent")  # as it averages
@pytest.mark.parametrize(
    ("method", "recompute"), [("flush", "always"), ("pipedream", "never"), ("2bw", "never")]
)
def test_a_buffer_that_is_replaced(method: str, recompute: str) -> None:
    """One average for all weight versions; a recomputed forward sees another, as batch norm's."""
    torch.manual_seed(8)
    model = nn.Sequential(Counting(), nn.Tanh(), nn.Linear(6, 3))
    batches = data(5)
    truth = by_equations(model, batches, method, [1, 1, 1])
    pipe = pipeline(model, method, [1, 1, 1], recompute=recompute)
    run = pipe.train(batches)
    assert torch.equal(pipe.state_dict()["0.average"], truth.buffers["0.average"])
    if recompute == "never":
        assert run.losses == truth.losses
        assert different(pipe.state_dict(), truth.weights[-1] | truth.buffers) == []


class Checkpointed(nn.Module):
    """A layer that recomputes itself, perhaps with a dropout inside, whose state it forgets."""

    def __init__(self, dropout: float | None) -> None:
        super().__init__()
        middle = nn.Tanh() if dropout is None else nn.Dropout(dropout)
        self.block = nn.Sequential(nn.Linear(6, 6), middle, nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        y: Tensor = checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False)
        return y


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_a_layer_that_draws_again_in_its_backward_is_refused(transport: str) -> None:
    """Its mask would be another than in its forward: no gradient of anything."""
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(6, 6), Checkpointed(0.5), nn.Linear(6, 3))
    pipe = pipeline(model, "flush", [1, 2], transport=transport)
    with pytest.raises(ValueError, match="use recompute='always'"):
        pipe.train(data(3))


def test_layers_that_use_torch_checkpoint() -> None:
    torch.manual_seed(9)
    model = nn.Sequential(Checkpointed(None), nn.Linear(6, 3))
    assert_follows_equations(model, data(3), "flush", [1, 1])


# --- Both transports -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "model", "balance", "rows", "options"),
    [
        ("gpipe", "pairs", [2, 2, 2, 2], [10, 9, 12], {"clip_norm": 0.1}),
        ("2bw", "mixed", [3, 1, 4], [10, 9, 12, 10], {"lr_scheduler": step_lr}),
        ("pipedream", "pairs", [1, 2, 1, 4], [4, 3, 2, 5, 4, 3], {}),
        ("pipedream", "frozen", [2, 6], [5] * 4, {"optimizer": OPTIMIZERS["adam"]}),
        ("vertical_sync", "images", [3, 2, 3], [4, 3, 4, 3], {"recompute": "always"}),
        ("no_stashing", "mixed", [2, 3, 3], [4] * 5, {}),
    ],
)
def test_processes_give_the_bits_of_threads(
    method: str, model: str, balance: list[int], rows: list[int], options: dict[str, Any]
) -> None:
    batches = data(rows=rows)

    def outcome(transport: str) -> tuple[list[Any], dict[str, Tensor]]:
        pipe = pipeline(MODELS[model](), method, balance, transport=transport, **options)
        runs = [pipe.train(batches), pipe.train(batches[:2])]
        assert [r.peak_in_flight for r in runs] == [check(r.schedule).peak_in_flight for r in runs]
        told = [(run.losses, run.weight_slots) for run in runs]
        return [*told, pipe.evaluate(batches)], pipe.state_dict()

    threads, processes = map(outcome, ("threads", "distributed"))
    assert threads[0] == processes[0]
    assert different(threads[1], processes[1]) == []
    truth = by_equations(MODELS[model](), batches, method, balance, **options)
    assert threads[0][0][0] == truth.losses
