"""Hooks, penalties and whatever else people ask of autograd, beside the plain loop."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.layers.skips import Skippable
from tests.engine.examples import different
from tests.people.plain import CE, assert_as_plain, batches, network, pipe

Change = Callable[[Tensor], Tensor | None]


class Hooked(nn.Module):
    """Changes the gradient of its input, as gradient reversal, clipping and scaling do."""

    def __init__(self, change: Change, times: int = 1) -> None:
        super().__init__()
        self.change, self.times = change, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times if x.requires_grad else 0):
            x.register_hook(self.change)
        return x * 1


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def gradients(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    for x, y in data:
        CE(model(x), y).backward()
    return grads(model)


CHANGES = {
    "reversal": lambda g: -g,
    "clipping": lambda g: g.clamp(-0.01, 0.01),
    "scaling": lambda g: g * 0.5,
    "nothing": lambda g: None,
}


HOOKED: list[tuple[nn.Module, dict[str, Any]]] = [
    (Hooked(change), {}) for change in CHANGES.values()
] + [
    (Hooked(lambda g: -0.5 * g, times=2), {}),  # one after the other
    (Hooked(lambda g: -0.5 * g), {"execution": pk.Execution(recompute="always")}),  # once
    (Hooked(lambda g: -g), {"schedule": schedules.zb_h1(2, 4)}),
]


@pytest.mark.parametrize(
    ("hooked", "how"), HOOKED, ids=[*CHANGES, "two", "recomputed", "split backward"]
)
@pytest.mark.parametrize("balance", [[1, 2], [2, 1]], ids=str)
def test_a_hook_on_a_layers_input_changes_the_gradient_wherever_stages_begin(
    hooked: nn.Module, how: dict[str, Any], balance: list[int]
) -> None:
    assert_as_plain(network(hooked), balance=balance, **how)


def test_hooks_of_modules_at_a_border_change_gradients() -> None:
    model = network(nn.Identity())

    def halve(module: nn.Module, into: Any, out: Any) -> tuple[Tensor]:
        return (into[0] * -0.5,)

    for layer in model[1], model[2]:
        layer.register_full_backward_hook(halve)
    for balance in [1, 2], [2, 1]:
        assert_as_plain(model, balance=balance)


def test_a_layer_may_hook_a_skip_connection() -> None:
    class Put(Skippable):
        stashes = ("skip",)

        def forward(self, x: Tensor) -> Tensor:
            self.stash("skip", x * 1)
            return x * 2

    class Get(Skippable):
        pops = ("skip",)

        def forward(self, x: Tensor) -> Tensor:
            skip = self.pop("skip")
            if skip.requires_grad:
                skip.register_hook(lambda g: g * 3)
            return x + skip

    layers = [nn.Linear(8, 8), Put(), nn.Linear(8, 8), Get(), nn.Linear(8, 3)]
    data, found = batches(), []
    for balance in ([5], [1, 4], [2, 3], [3, 2]):
        pipeline = pipe(nn.Sequential(*layers), schedules.flush(len(balance), 2), balance)
        pipeline.train(data)
        found.append(pipeline.state_dict())
    for other in found[1:]:
        assert different(other, found[0]) == []


def test_a_recorded_model_with_such_a_hook_is_cut_before_it() -> None:
    model = pk.stages(network(Hooked(lambda g: -g)), batches(1)[0][0])
    assert_as_plain(model, balance=[1, 2])


@pytest.mark.parametrize("checkpoint", ["never", "always", "except_last"])
@pytest.mark.parametrize("balance", [[1, 2], [2, 1]], ids=str)
def test_a_pipelined_module_calls_such_hooks(checkpoint: Any, balance: list[int]) -> None:
    model, data = network(Hooked(lambda g: -g)), batches(1)
    module = pk.PipelinedModule(copy.deepcopy(model), balance, chunks=1, checkpoint=checkpoint)
    assert different(gradients(module, data), gradients(model, data)) == []


# --- gradients of gradients


def penalized(net: nn.Module, x: Tensor, weight: float = 10.0) -> Tensor:
    """Return WGAN-GP's loss of a critic."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    loss: Tensor = net(x).mean() + weight * (gradient.norm(dim=1) - 1).pow(2).mean()
    return loss


def critic() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_gradient_penalty_is_refused(chunks: int, checkpoint: Any) -> None:
    module = pk.PipelinedModule(critic(), [2, 1], chunks=chunks, checkpoint=checkpoint)
    loss = penalized(module, torch.randn(8, 8))
    with pytest.raises(ValueError, match=r"compute them with torch\.nn\.Sequential\(\*module\)"):
        loss.backward()


def test_the_remedy_of_that_refusal_trains() -> None:
    model, x = critic(), torch.randn(8, 8)
    module = pk.PipelinedModule(copy.deepcopy(model), [2, 1], chunks=2)
    penalized(nn.Sequential(*module), x).backward()
    penalized(model, x).backward()
    assert different(grads(module), grads(model)) == []


def test_a_penalty_of_weights_gradients_is_refused() -> None:
    module = pk.PipelinedModule(critic(), [2, 1], chunks=2)
    loss = module(torch.randn(8, 8)).mean()
    found = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    with pytest.raises(ValueError, match="cannot be differentiated again"):
        torch.stack([each.pow(2).sum() for each in found]).sum().backward()


def test_transforms_of_torch_func_around_a_module_are_refused() -> None:
    module = pk.PipelinedModule(network(nn.Tanh()), [2, 1], chunks=2)
    with pytest.raises(RuntimeError, match=r"torch.func's transforms.*nn.Sequential\(\*module"):
        torch.func.vmap(module)(torch.randn(3, 2, 8))


def test_a_module_within_a_larger_graph_gets_the_gradients_of_its_input() -> None:
    model, x = critic(), torch.randn(8, 8)
    front = nn.Linear(8, 8)
    module = pk.PipelinedModule(copy.deepcopy(model), [2, 1], chunks=1)
    found = []
    for each in module, model:
        each(front(x)).sum().backward()
        found.append(grads(front))
        front.weight.grad = front.bias.grad = None
    assert different(found[0], found[1]) == []
