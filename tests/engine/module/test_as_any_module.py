"""What any module can be: used twice, moved, copied, pickled, let go of."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipekit import PipelinedModule, Watch
from pipekit.plans import Recompute
from tests.engine.examples import data, different, mixed, mlp
from tests.layers.test_skips import Pop, Stash


@pytest.mark.parametrize("balance", [[2, 2], [3, 1]], ids=str)
def test_a_layer_that_is_used_twice_keeps_both_names(balance: list[int]) -> None:
    layer = nn.Linear(6, 6)
    weight, plain = layer.weight, nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))
    model = PipelinedModule(plain, balance, chunks=2)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert len(model) == len(list(model)) == 4
    assert model[2] is layer
    x, _ = data(1)[0]
    gradients = []
    for each in (model, plain):
        each.zero_grad()
        each(x).sum().backward()
        assert layer.weight is weight
        assert weight.grad is not None
        gradients.append(weight.grad.clone())
    torch.testing.assert_close(*gradients)
    other = PipelinedModule(copy.deepcopy(plain), [1, 3], chunks=2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_other_weights_stand_in_for_its_own(checkpoint: Recompute) -> None:
    """As in MAML's inner step, whose gradients reach the module's own weights."""
    plain, (x, _) = mlp(6, 6, 3), data(1)[0]
    model = PipelinedModule(mlp(6, 6, 3), [1, 1], chunks=2, checkpoint=checkpoint)
    for each in (model, plain):
        halved = {name: 0.5 * weight for name, weight in each.named_parameters()}
        functional_call(each, halved, (x,)).sum().backward()
    for own, known in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, known.grad)


def test_torch_compile_leaves_the_engine_alone() -> None:
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    model, x = PipelinedModule(mlp(6, 6, 3), [1, 1], chunks=2), data(1)[0][0]
    assert torch.equal(torch.compile(model, backend=backend)(x), model(x))
    assert graphs == []


COPIES: dict[str, Callable[[PipelinedModule], PipelinedModule]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("without", [(), ("portals",)])
@pytest.mark.parametrize("how", COPIES)
def test_it_is_copied(how: str, without: tuple[str, ...]) -> None:
    layers = nn.Sequential(Stash(), *mixed()[:2], nn.Linear(8, 6), Pop().isolate(""))
    model = PipelinedModule(
        layers,
        [2, 2, 1],
        chunks=2,
        without=without,
        deferred_batch_norm=True,
        watch=Watch(trace=True),
    )
    x, _ = data(1)[0]
    model(x).sum().backward()
    twin = COPIES[how](model)
    assert not {id(p) for p in model.parameters()} & {id(p) for p in twin.parameters()}
    for each in (model, twin):
        each(x).sum().backward()
    assert different(dict(model.state_dict()), dict(twin.state_dict())) == []
    assert len(twin.trace.frame) == len(model.trace.frame) > 0
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert not torch.equal(twin(x), model(x))


def test_no_way_moves_it() -> None:
    model = PipelinedModule(mlp(6, 6, 3), [1, 1], chunks=2)
    parent = nn.Sequential(model)
    elsewhere = torch.empty(0, device="meta")
    moves: list[Callable[[], object]] = [
        lambda: model.to("meta"),
        lambda: model.to(tensor=elsewhere),
        lambda: model.to(elsewhere),
        lambda: model.to_empty(device="meta"),
        lambda: parent.to("meta"),
        lambda: parent.to_empty(device="meta"),
    ]
    for move in moves:
        with pytest.raises(TypeError, match="devices of their own"):
            move()
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert parent.to("cpu").half() is parent
    assert model.cpu() is model
    assert {p.dtype for p in model.parameters()} == {torch.float16}


class Remembered(nn.Module):
    """Knows which of its outputs are in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.outputs: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x).tanh()
        self.outputs.append(weakref.ref(y))
        return y

    @property
    def alive(self) -> int:
        return sum(output() is not None for output in self.outputs)


@pytest.mark.filterwarnings("ignore:the forward changes 0.outputs")
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_forward_without_a_backward_is_let_go_of(checkpoint: str) -> None:
    """At once, and not when Python next looks for circles."""
    layer = Remembered()
    layers = nn.Sequential(layer, nn.Linear(6, 6), nn.Linear(6, 3))
    model = PipelinedModule(layers, [2, 1], chunks=2, checkpoint=checkpoint)  # type: ignore[arg-type]
    x, _ = data(1)[0]
    model(x)
    gc.collect()
    gc.disable()
    try:
        output = model(x)
        assert layer.alive == (2 if checkpoint == "never" else 0)
        del output
        assert layer.alive == 0
        output = model(x)
        output.sum().backward()
        assert layer.alive == 0
    finally:
        gc.enable()
