"""What the calling thread has: context variables, modes of torch, and random generators."""

import contextvars
import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Schedule
from tests.engine.examples import different
from tests.people.plain import CE, SGD, assert_as_plain, batches, network, pipe, plain_loop

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


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_data_see_the_callers_context_variables(scaled: None, transport: str) -> None:
    given = batches(2)

    def losses(data: Any) -> list[float]:
        torch.manual_seed(0)
        with closing(pipe(network(nn.Tanh()), transport=transport)) as pipeline:
            return pipeline.train(data).losses

    assert losses((x * SCALE.get(), y) for x, y in given) == losses([(x * 3, y) for x, y in given])


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


Build = Callable[[], nn.Module]


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (1 + torch.randn(x.shape, generator=self.generator) * 0.1)


class NoiseInList(Noise):
    def __init__(self) -> None:
        super().__init__()
        self.all = [self.generator]
        del self.generator

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.randn(x.shape, generator=self.all[0]) * 0.1)


@pytest.mark.parametrize("build", [Noise, NoiseInList])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_layer_draws_from_its_own_generator_as_in_the_plain_loop(
    build: Build, recompute: Any
) -> None:
    assert_as_plain(network(build()), execution=pk.Execution(recompute=recompute))


def test_the_users_generator_stays_as_it_is() -> None:
    model, data = network(Noise()), batches()
    pipe(pk.stages(model, data[0][0])).train(data)
    state = torch.Generator().manual_seed(3).get_state()
    generator: Any = model[1].generator
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("method", [schedules.two_bw, schedules.flush])
def test_weight_versions_draw_from_one_generator(method: Callable[..., Schedule]) -> None:
    model, data = network(Noise()), batches(6)
    found = []
    for balance in [2, 1], [1, 2]:
        pipeline = pipe(copy.deepcopy(model), method(2, 4), balance)
        pipeline.train(data)
        found.append(pipeline.state_dict())
    assert different(found[0], found[1]) == []


def test_pipelines_go_on_drawing_where_the_last_call_ended() -> None:
    model, data = network(Noise()), batches(4)
    plain = copy.deepcopy(model)
    pipeline = pipe(model)
    for part in data[:1], data[1:3], data[3:]:
        pipeline.train(part)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []


@pytest.mark.parametrize("build", [Noise, NoiseInList])
def test_a_resumed_training_draws_on_where_its_checkpoint_was_written(
    build: Build, tmp_path: Path
) -> None:
    model, data = network(build()), batches(6)
    undisturbed = pipe(copy.deepcopy(model), schedules.two_bw(2, 4))
    undisturbed.train(data)

    def until_third() -> Iterator[tuple[Tensor, Tensor]]:
        yield from data[:3]
        raise OSError("the disk is gone")

    saved = pk.Checkpoints(tmp_path, every=2)
    for interrupted in True, False:
        pipeline = pipe(copy.deepcopy(model), schedules.two_bw(2, 4))
        assert pipeline.resume(tmp_path) == 0
        if interrupted:
            with pytest.raises(OSError, match="disk"):
                pipeline.train(until_third(), steps=6, checkpoints=saved)
        else:
            pipeline.train(data, checkpoints=saved)
    assert different(pipeline.state_dict(), undisturbed.state_dict()) == []


class Fixed(nn.Module):
    """Adds the same noise in every forward, by a seed of its own."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng([]):
            torch.manual_seed(3)
            return x + torch.randn(8)


def test_a_layer_that_seeds_draws_as_in_the_plain_loop() -> None:
    state = torch.get_rng_state()
    assert_as_plain(network(Fixed()), schedule=schedules.gpipe(2, 4))
    assert not torch.equal(torch.get_rng_state(), state)  # by batches()


class Dropped(nn.Linear):
    def __init__(self, checkpointed: bool, preserved: bool = True) -> None:
        super().__init__(8, 8)
        self.checkpointed, self.preserved = checkpointed, preserved

    def forward(self, x: Tensor) -> Tensor:
        if not self.checkpointed:
            return self.dropped(x)
        how: Any = {"use_reentrant": False, "preserve_rng_state": self.preserved}
        y: Tensor = checkpoint(self.dropped, x, **how)
        return y

    def dropped(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x)).tanh() + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize("schedule", [schedules.gpipe(2, 4), schedules.zb_h1(2, 4)])
def test_a_layers_own_checkpoint_draws_again_as_in_its_forward(schedule: Schedule) -> None:
    """A first stage's backward may be one for the weights only."""
    trained, data = [], batches()
    for checkpointed in True, False:
        torch.manual_seed(0)
        model = nn.Sequential(Dropped(checkpointed), Dropped(checkpointed), nn.Linear(8, 3))
        pipeline, state = pipe(model, schedule, [1, 2]), torch.get_rng_state()
        pipeline.train(data)
        assert torch.equal(torch.get_rng_state(), state)
        trained.append(pipeline.state_dict())
    assert different(*trained) == []


@pytest.mark.parametrize("schedule", [schedules.gpipe(2, 4), schedules.zb_h1(2, 4)])
def test_one_that_draws_other_numbers_again_is_refused(schedule: Schedule) -> None:
    model = nn.Sequential(Dropped(True, preserved=False), nn.Linear(8, 8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"in its backward, .* preserve_rng_state=True"):
        pipe(model, schedule, [1, 2]).train(batches())


@pytest.mark.slow
def test_processes_draw_alike() -> None:
    assert_as_plain(network(Noise()), transport="distributed").close()
