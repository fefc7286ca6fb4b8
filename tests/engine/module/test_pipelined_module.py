"""A pipelined module is the module that it wraps, computed by stages and microbatches."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipekit import PipelinedModule, Watch, is_checkpointing, is_recomputing
from pipekit.engine.module.backward_order import link
from pipekit.engine.module.minibatch import Minibatch
from pipekit.models import unet
from tests.engine.examples import SlowBackward, in_backward
from tests.engine.gloo import over_gloo
from tests.layers.test_skips import Stash
from tests.people.test_torchgpipe import Calls


def mlp(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        *between,
        nn.ReLU(inplace=True),
        nn.Linear(8, 3),
    )


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the output and all gradients, the input's first."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    assert x.grad is not None
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return y.detach(), [x.grad, *gradients]


def assert_same(model: nn.Module, reference: nn.Module, x: Tensor) -> None:
    (y, gradients), (expected, references) = step(model, x), step(reference, x)
    torch.testing.assert_close(y, expected)
    assert len(gradients) == len(references)
    for gradient, wanted in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(
    ("balance", "checkpoint"),
    [([5], "always"), ([2, 2, 1], "except_last"), ([1] * 5, "never"), ([1] * 5, "always")],
)
def test_outputs_and_gradients_are_the_modules_own(balance: list[int], checkpoint: Any) -> None:
    model = PipelinedModule(mlp(), balance, chunks=4, checkpoint=checkpoint)
    assert_same(model, mlp(), torch.randn(8, 6))


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_any_number_of_rows(rows: int) -> None:
    """Four microbatches as even as can be; of fewer rows, as many as there are."""
    assert_same(PipelinedModule(mlp(), [2, 3], chunks=4), mlp(), torch.randn(rows, 6))


def test_it_trains_with_any_loop() -> None:
    model, reference = PipelinedModule(mlp(), [2, 3], chunks=2), mlp()
    losses = []
    for each in model, reference:
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(each(torch.randn(8, 6)), torch.ones(8, 3))
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)


def test_gradients_add_up_over_backwards_and_forwards_may_overlap() -> None:
    x, z = torch.randn(4, 6), torch.randn(4, 6)
    found = []
    for model in PipelinedModule(mlp(), [2, 3], chunks=2), mlp():
        first, second = model(x), model(z)
        first.sum().backward()
        (second * 2).sum().backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found)


def test_gradients_are_the_parameters_own_and_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    given, differentiate = list[int](), Minibatch.differentiate

    def noted(minibatch: Minibatch) -> Any:
        gradients = differentiate(minibatch)
        given.extend(each.data_ptr() for each in gradients if each is not None)
        return gradients

    monkeypatch.setattr(Minibatch, "differentiate", noted)
    model = PipelinedModule(mlp(), [2, 3], chunks=2)
    model(torch.randn(4, 6)).sum().backward()
    assert [p.grad.data_ptr() for p in model.parameters() if p.grad is not None] == given


def test_autograd_sees_one_operation() -> None:
    """Gradients can be asked for, and each parameter's hook is called once a backward."""
    model, reference, x = PipelinedModule(mlp(), [2, 3], chunks=4), mlp(), torch.randn(8, 6)
    torch.testing.assert_close(
        torch.autograd.grad(model(x).sum(), list(model.parameters())),
        torch.autograd.grad(reference(x).sum(), list(reference.parameters())),
    )
    assert all(p.grad is None for p in model.parameters())
    calls: list[int] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: calls.append(id(p)))
    model(x).sum().backward()
    assert sorted(calls) == sorted(id(p) for p in model.parameters())


def _replica() -> list[bool]:
    dist.init_process_group("gloo")
    pipelined = nn.parallel.DistributedDataParallel(PipelinedModule(mlp(), [2, 3], chunks=2))
    plain = nn.parallel.DistributedDataParallel(mlp())
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
    for model in pipelined, plain:
        model(x).square().mean().backward()
    pairs = zip(pipelined.parameters(), plain.parameters(), strict=True)
    return [
        torch.allclose(a.grad, b.grad)
        for a, b in pairs
        if a.grad is not None and b.grad is not None
    ]


def test_replicas_average_its_gradients() -> None:
    """Of torch's DistributedDataParallel, a process each."""
    assert over_gloo(_replica, 2) == [[True] * 6] * 2


def test_without_gradients_nothing_is_kept() -> None:
    seen: list[bool] = []
    look = showing(lambda _: seen.append(is_run_twice()))
    model = PipelinedModule(mlp(look), [3, 3], chunks=2, checkpoint="always")
    with torch.no_grad():
        assert not model(torch.randn(4, 6)).requires_grad
    assert not any(seen)


def test_evaluation_checkpoints_nothing_but_can_be_differentiated() -> None:
    seen: list[bool] = []
    look = showing(lambda _: seen.append(is_run_twice()))
    model = PipelinedModule(mlp(look), [3, 3], chunks=2, checkpoint="always").eval()
    assert_same(model, mlp().eval(), torch.randn(4, 6))
    assert not any(seen)


def showing(see: Callable[[Tensor], None]) -> Calls:
    """Return a layer that shows what it passes on."""

    def pass_on(x: Tensor) -> Tensor:
        see(x)
        return x

    return Calls(pass_on)


def is_run_twice() -> bool:
    return is_checkpointing() or is_recomputing()


@pytest.mark.parametrize(
    ("checkpoint", "chunks", "count"),
    [
        ("always", 4, 4),
        ("except_last", 4, 3),
        ("except_last", 1, 0),
        ("never", 1, 0),
    ],
)
def test_how_many_microbatches_are_checkpointed(checkpoint: Any, chunks: int, count: int) -> None:
    seen: list[str] = []
    flags = {(True, False): "checkpointing", (False, True): "recomputing", (False, False): "plain"}
    look = showing(lambda _: seen.append(flags[is_checkpointing(), is_recomputing()]))
    model = PipelinedModule(mlp(look), [3, 3], chunks=chunks, checkpoint=checkpoint)
    model(torch.randn(4, 6)).sum().backward()
    seen = seen[1 if chunks == 1 else 4 :]  # which try the model, and whether it mixes rows
    assert seen.count("checkpointing") == seen.count("recomputing") == count
    assert seen.count("plain") == chunks - count
    assert not is_checkpointing()
    assert not is_recomputing()


def test_a_recomputed_forward_draws_the_same_numbers() -> None:
    def gradients(checkpoint: Any) -> list[Tensor]:
        model = PipelinedModule(mlp(nn.Dropout(0.5)), [2, 4], chunks=3, checkpoint=checkpoint)
        torch.manual_seed(5)
        return step(model, torch.ones(6, 6))[1]

    assert all(map(torch.equal, gradients("always"), gradients("never")))


def test_autocast_reaches_the_workers_and_what_is_recomputed() -> None:
    seen: list[torch.dtype] = []
    look = showing(lambda x: seen.append(x.dtype))
    model = PipelinedModule(mlp(look), [3, 3], chunks=2, checkpoint="always")
    model(torch.randn(4, 6))
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.randn(4, 6))
    y.float().sum().backward()
    assert seen == [torch.bfloat16] * 4


# --- skip connections ----------------------------------------------------------------------------


@pytest.mark.parametrize("without", [(), ("portals",), ("order", "streams", "portals")])
def test_skips_with_and_without_portals(without: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    layers = unet(1, 2)
    balance = [7, 7, 8]
    model = PipelinedModule(copy.deepcopy(layers), balance, chunks=2, without=without)
    assert list(model.state_dict()) == list(layers.state_dict())
    assert_same(model.eval(), layers.eval(), torch.randn(2, 3, 64, 64))


def test_an_unmatched_skip_is_refused() -> None:
    with pytest.raises(ValueError, match="stashes 'skip', which no layer pops"):
        PipelinedModule(nn.Sequential(Stash(), nn.Linear(1, 1)), [1, 1], chunks=1)


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [True, False])
def test_the_graph_orders_the_backwards_of_a_stage(in_order: bool) -> None:
    """Whichever way the passes were issued; without the edges autograd follows that way alone."""
    shuffled = [(0, 1), (0, 0), (0, 2), (1, 2), (1, 1), (1, 0)]
    passes = sorted(shuffled) if in_order else shuffled
    order: list[tuple[int, int]] = []
    begun: list[Any] = []
    x = torch.ones(1, requires_grad=True)
    calls = begun.append, order.append, lambda: [None]
    (y,) = link(*calls, [x], [torch.ones(1)], passes, in_order)
    y.backward()
    assert len(begun) == 1
    orders = [[k for stage, k in order if stage == s] for s in (0, 1)]
    assert orders == ([[2, 1, 0], [2, 1, 0]] if in_order else [[2, 0, 1], [0, 1, 2]])


def test_a_recomputation_does_not_wait_for_its_gradient() -> None:
    """It is over before the stage behind has finished (torchgpipe, section 3.2.4)."""
    model = PipelinedModule(
        nn.Sequential(nn.Linear(6, 6), SlowBackward()), [1, 1], chunks=2, watch=Watch(trace=True)
    )
    model(torch.randn(2, 6)).sum().backward()
    frame = model.trace.frame.set_index(["stage", "op", "microbatch"])
    again, behind = frame.loc[(0, "RECOMPUTE", 0)], frame.loc[(1, "BACKWARD", 0)]
    assert again["end_s"] < behind["end_s"]


# --- what goes wrong -----------------------------------------------------------------------------


class Fails(nn.Module):
    """Fails in the forward or in the backward, after the first time."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.calls, self.backward = 0, backward

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1 and not self.backward:
            refuse(x)
        return in_backward(refuse, x) if self.backward else x


def refuse(_: Tensor) -> Tensor:
    raise OSError("no more")


@pytest.mark.filterwarnings("ignore:the forward changes 3.calls")
@pytest.mark.parametrize("backward", [False, True])
def test_the_first_error_is_the_callers_and_no_worker_stays(backward: bool) -> None:
    before = set(threading.enumerate())  # other tests' threads may not have ended
    model = PipelinedModule(mlp(Fails(backward)), [2, 2, 2], chunks=4, checkpoint="never")
    with pytest.raises(OSError, match="no more") as failure:
        model(torch.randn(8, 6)).sum().backward()
    assert "of stage 1" in "".join(failure.value.__notes__)
    own = set(threading.enumerate()) - before
    assert not [thread for thread in own if thread.name.startswith("pipekit")]


def test_a_second_backward_is_refused() -> None:
    y = PipelinedModule(mlp(), [2, 3], chunks=2)(torch.randn(4, 6)).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward was called a second time"):
        y.backward()


def test_a_number_is_no_output() -> None:
    model = nn.Sequential(nn.Linear(6, 1), Calls(torch.mean))
    with pytest.raises(ValueError, match="compute the loss outside"):
        PipelinedModule(model, [1, 1], chunks=2)(torch.ones(4, 6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"balance": [5, 1]}, "sums to 6 layers and the model has 5"),
        ({"balance": "auto"}, "balance must be a list"),
        ({"chunks": 0}, "chunks must be a whole number from 1"),
        ({"chunks": 42.0}, "chunks must be a whole number from 1"),
        ({"checkpoint": "sometimes"}, "checkpoint must be one of"),
        ({"without": ["portal"]}, "without must be one of order, streams, portals"),
        ({"devices": ["cpu"]}, "1 devices for 2 workers"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PipelinedModule(mlp(), **{"balance": [2, 3], "chunks": 2, **arguments})


def test_it_can_be_converted() -> None:
    model = PipelinedModule(mlp(), [2, 3], chunks=2).to(torch.float64)
    assert_same(model, mlp().double(), torch.randn(4, 6, dtype=torch.float64))
