"""The messages of the distributed transport."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pipekit.engine.distributed import Form, roles
from pipekit.schedules import gpipe, lower
from tests.engine.examples import by_equations, data, different, pipeline

CPU = torch.device("cpu")

MESSAGES: dict[str, Any] = {
    "tensor": torch.randn(3, 2),
    "list": [torch.randn(2), torch.randn(3)],
    "nested": (torch.randn(2), {"a": [torch.arange(3)], 7: (torch.ones(1) > 0,)}),
    "transposed": torch.randn(2, 5).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "gaps": torch.randn(4, 6)[:, ::2],
    "expanded": torch.randn(4, 1).expand(4, 3),
    "empty": (torch.empty(4, 0), torch.ones(2)),
    "scalar": torch.tensor(3.5),
    "types": [torch.ones(2, dtype=t) for t in (torch.bfloat16, torch.float64, torch.complex64)],
    "nothing": [],
}


def described(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.dtype, tuple(tree.shape), tree.tolist()
    if isinstance(tree, dict):
        return {key: described(value) for key, value in tree.items()}
    return type(tree), [described(item) for item in tree]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_rebuilt_from_its_form(name: str) -> None:
    message = MESSAGES[name]
    form = Form.of(message)
    received = form.empty(CPU)
    sent: list[Tensor] = []

    def flatten(tree: Any) -> None:
        if isinstance(tree, Tensor):
            sent.append(tree.contiguous())
        else:
            for item in tree.values() if isinstance(tree, dict) else tree:
                flatten(item)

    flatten(message)
    for buffer, tensor in zip(received, sent, strict=True):
        assert buffer.is_contiguous()
        buffer.copy_(tensor)
    built = form.build(received)
    assert described(built) == described(message)
    if isinstance(message, Tensor) and name != "expanded":
        assert built.stride() == message.stride()


def test_equal_forms_for_equal_layouts_only() -> None:
    assert Form.of(torch.ones(2, 3)) == Form.of(torch.zeros(2, 3))
    for other in (torch.ones(3, 2).t(), torch.ones(2, 3).double(), torch.ones(1, 3)):
        assert Form.of(other) != Form.of(torch.ones(2, 3))
    assert Form.of([torch.ones(2)]) != Form.of(torch.ones(2))


def test_who_takes_inputs_and_targets() -> None:
    assert [roles(steps) for steps in lower(gpipe(3, 2))] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert roles(lower(gpipe(1, 2))[0]) == (True, True)


class ByValue(nn.Module):
    """Its output's shape depends on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x[: 1 + int(x[0, 0] > 0)] if torch.is_grad_enabled() else x


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True)


def test_shapes_that_depend_on_values_are_explained() -> None:
    model = nn.Sequential(ByValue(), Mean(), nn.Linear(6, 3))
    pipe = pipeline(model, "gpipe", [1, 2], transport="distributed", loss=by_sum)
    with pytest.raises(ValueError, match="need transport='threads'"):
        pipe.train(data(20))


def by_sum(output: Tensor, target: Tensor) -> Tensor:
    return output.square().sum() + 0 * target.sum()


class Pair(NamedTuple):
    one: Tensor
    two: Tensor


class Named(nn.Module):
    def forward(self, x: Tensor) -> Pair:
        return Pair(x, x * 2)


class Unnamed(nn.Module):
    def forward(self, pair: Pair) -> Tensor:
        return pair.one * pair.two


def test_named_tuples() -> None:
    """Threads hand them over; processes refuse rather than lose the names."""
    model = nn.Sequential(nn.Linear(6, 6), Named(), Unnamed(), nn.Linear(6, 3))
    truth = by_equations(model, data(2), "flush", [2, 2])
    assert pipeline(model, "flush", [2, 2]).train(data(2)).losses == truth.losses
    with pytest.raises(TypeError, match=r"named tuple Pair .* pass on a tuple or a dict"):
        pipeline(model, "flush", [2, 2], transport="distributed").train(data(2))


@pytest.mark.parametrize("method", ["flush", "pipedream", "2bw"])
def test_a_new_shape_in_every_batch(method: str) -> None:
    """Workers tell each other of new shapes in both directions at once."""
    batches, balance = data(rows=[10, 9, 13, 8, 11, 10, 12]), [1, 1, 1]
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    truth = by_equations(model, batches, method, balance)
    pipe = pipeline(model, method, balance, transport="distributed")
    assert pipe.train(batches).losses == truth.losses
    assert different(pipe.state_dict(), truth.weights[-1]) == []


def test_messages_larger_than_any_buffer() -> None:
    """4 MB a microbatch: nobody may wait for the other to take it."""
    model = nn.Sequential(Widen(), nn.Identity(), Narrow(), nn.Linear(6, 3))
    truth = by_equations(model, data(3), "pipedream", [1, 1, 2])
    pipe = pipeline(model, "pipedream", [1, 1, 2], transport="distributed")
    assert pipe.train(data(3)).losses == truth.losses


class Widen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).repeat(1, 20_000)


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, 6).mean(1)
