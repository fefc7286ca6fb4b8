"""Context variables and modes of torch, which the calling thread alone has."""

import contextvars
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import pipekit as pk
from tests.people.three_layers import CE, assert_as_plain, batches, network, pipe

SCALE = contextvars.ContextVar("SCALE", default=1.0)


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE.get()


class Doubled(torch.overrides.TorchFunctionMode):
    """Changes a function of torch."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is nn.functional.softplus else result


@pytest.fixture
def scaled() -> Iterator[None]:
    token = SCALE.set(3.0)
    yield
    SCALE.reset(token)


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_layers_see_the_callers_context_variables(scaled: None, recompute: Any) -> None:
    model, x = network(Scaled()), batches(1)[0][0]
    pipeline = assert_as_plain(model, execution=pk.Execution(recompute=recompute))
    trained = pipeline.load_into(model).eval()
    assert torch.equal(pipeline.predict([x])[0], trained(x))


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_pipelined_modules_layers_see_those_of_the_forward(checkpoint: Any) -> None:
    model, (x, y) = network(Scaled()), batches(1)[0]
    module = pk.PipelinedModule(copy.deepcopy(model), [1, 2], chunks=1, checkpoint=checkpoint)
    for each in model, module:
        token = SCALE.set(3.0)
        loss = CE(each(x), y)
        SCALE.reset(token)
        loss.backward()
    for one, other in zip(model.parameters(), module.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_modes_of_the_calling_thread_are_warned_of() -> None:
    softplus = network(nn.Softplus())
    with Doubled(), pytest.warns(UserWarning, match="mode Doubled of this one does not act"):
        pipe(softplus).train(batches())
    module = pk.PipelinedModule(softplus, [2, 1], chunks=2)
    with Doubled(), pytest.warns(UserWarning, match="mode Doubled of this one does not act"):
        module(batches()[0][0])
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with hooks, pytest.warns(UserWarning, match="mode saved_tensors_hooks"):
        pipe(softplus).train(batches())
    counter = FlopCounterMode(display=False)
    with counter, pytest.warns(UserWarning, match="FlopCounterMode"):
        pipe(softplus).train(batches())


def test_a_default_device_is_no_such_mode() -> None:
    with torch.device("cpu"):
        pipe(network(nn.Softplus())).train(batches())
