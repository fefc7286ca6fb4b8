"""Models that change on the way: buffers, generators, modes, weights loaded, layers unfrozen."""

import contextvars
import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Schedule
from tests.engine.examples import different
from tests.people.plain import plain_loop

SGD = partial(torch.optim.SGD, lr=0.1)
CE = nn.CrossEntropyLoss()
Build = Callable[[], nn.Module]


pytestmark = pytest.mark.usefixtures("one_thread")


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(8, 8), torch.randint(3, (8,))) for _ in range(count)]


def network(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3))


def pipe(
    model: nn.Sequential,
    schedule: Schedule | None = None,
    balance: list[int] | None = None,
    **settings: Any,
) -> pk.Pipeline:
    schedule = schedule or schedules.flush(2, 4)
    chosen: dict[str, Any] = {"optimizer": SGD, "loss": CE, **settings}
    return pk.Pipeline(model, schedule, balance=balance or [2, 1], **chosen)


# --- buffers that a forward edits and reads, and recomputation


def multiplied(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


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


def norm() -> nn.Module:
    return nn.BatchNorm1d(8)


def cumulative_norm() -> nn.Module:
    return nn.BatchNorm1d(8, momentum=None)


def two_that_share() -> nn.Module:
    first = Steps()
    return nn.Sequential(first, Shared(first))


KEEPERS = [
    Steps,
    Replaced,
    Codebook,
    Experts,
    spectral,
    norm,
    cumulative_norm,
    two_that_share,
]


@pytest.mark.parametrize("build", KEEPERS)
@pytest.mark.parametrize("recompute", ["never", "always", "except_last"])
def test_recomputation_reads_the_buffers_of_the_forward(build: Build, recompute: Any) -> None:
    model, data = network(build()), batches()
    plain = copy.deepcopy(model)
    pipeline = pipe(model, execution=pk.Execution(recompute=recompute))
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []


@pytest.mark.parametrize("build", KEEPERS)
@pytest.mark.parametrize("checkpoint", ["always", "except_last"])
def test_a_pipelined_module_reads_them_too(build: Build, checkpoint: Any) -> None:
    model, data = network(build()), batches()
    found = []
    for how in "never", checkpoint:
        module = pk.PipelinedModule(copy.deepcopy(model), [2, 1], chunks=4, checkpoint=how)
        optimizer = SGD(module.parameters())
        for x, y in data:
            optimizer.zero_grad()
            CE(module(x), y).backward()
            optimizer.step()
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


def test_a_model_that_was_evaluated_before_its_training_is_recomputed_alike() -> None:
    model, data = network(Steps()), batches()
    plain = copy.deepcopy(model)
    pipeline = pipe(model, execution=pk.Execution(recompute="always"))
    pipeline.evaluate(data)
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []


@pytest.mark.slow
def test_processes_recompute_alike() -> None:
    model, data = network(Steps()), batches(2)
    plain = copy.deepcopy(model)
    pipeline = pipe(model, transport="distributed", execution=pk.Execution(recompute="always"))
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []
    pipeline.close()


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


# --- generators of a layer's own


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
    model, data = network(build()), batches()
    plain = copy.deepcopy(model)
    pipeline = pipe(model, execution=pk.Execution(recompute=recompute))
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []


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


@pytest.mark.slow
def test_processes_draw_alike() -> None:
    model, data = network(Noise()), batches(2)
    plain = copy.deepcopy(model)
    pipeline = pipe(model, transport="distributed")
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []
    pipeline.close()


# --- what the calling thread alone has

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
    model, data = network(Scaled()), batches()
    plain = copy.deepcopy(model)
    pipeline = pipe(model, execution=pk.Execution(recompute=recompute))
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []
    outputs = pipeline.predict([data[0][0]])
    assert torch.equal(outputs[0], plain.eval()(data[0][0]))


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


# --- tensors that layers hand on in Python


class Store:
    """Any object that layers share."""

    x: Tensor | None = None


class Put(nn.Module):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.linear, self.store = nn.Linear(8, 8), store

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.store, dict):
            self.store["x"] = x
        elif isinstance(self.store, list):
            self.store[:] = [x]
        else:
            self.store.x = x
        return multiplied(self.linear(x), x.new_ones(()))


class Get(nn.Module):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.store, dict):
            kept: Tensor = self.store["x"]
        else:
            kept = self.store[0] if isinstance(self.store, list) else self.store.x
        return x + kept


def storing(store: Any) -> nn.Sequential:
    return nn.Sequential(Put(store), nn.Linear(8, 8), Get(store), nn.Linear(8, 3))


STORES = [dict, list, Store]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("balance", [[1, 3], [2, 2]], ids=str)
def test_what_layers_of_two_stages_hand_on_in_python_is_refused(
    kind: Callable[[], Any], balance: list[int]
) -> None:
    said = r"layer 2 reads a tensor that layer 0 has left .* stages 1 and 0, .*choose a balance"
    with pytest.raises(ValueError, match=said), warnings.catch_warnings(action="ignore"):
        pipe(storing(kind()), balance=balance).train(batches())
    module = pk.PipelinedModule(storing(kind()), balance, chunks=2)
    with pytest.raises(ValueError, match=said), warnings.catch_warnings(action="ignore"):
        module(batches()[0][0])


def test_what_they_hand_on_in_training_only_is_refused_after_an_evaluation() -> None:
    class PutInTraining(Put):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else x

    class GetInTraining(Get):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else x

    store = Store()
    layers = nn.Sequential(PutInTraining(store), GetInTraining(store), nn.Linear(8, 3))
    pipeline = pipe(layers, balance=[1, 2])
    pipeline.evaluate(batches())
    with pytest.raises(ValueError, match="has left in Python"):
        pipeline.train(batches())


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.filterwarnings("ignore:the forward changes")
def test_within_a_stage_it_arrives(kind: Callable[[], Any]) -> None:
    model, data = storing(kind()), batches()
    plain = copy.deepcopy(model)
    pipeline = pipe(model, balance=[3, 1])
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []


class Positions(nn.Module):
    """Keeps a table that it makes when it is first used, as rotary embeddings do."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1]) * x.new_full((), 0.1)
        return x + self.table


class Positioned(nn.Module):
    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self.positions, self.linear = positions, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.linear(self.positions(x))
        return moved


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_a_table_that_layers_of_two_stages_share_is_no_such_tensor() -> None:
    positions = Positions()
    model, data = nn.Sequential(*(Positioned(positions) for _ in range(3))), batches()
    plain = copy.deepcopy(model)
    pipeline = pipe(model, balance=[1, 2])
    pipeline.train(data)
    plain_loop(plain, SGD, CE, data, microbatches=4)
    assert different(pipeline.state_dict(), plain.state_dict()) == []


@pytest.mark.filterwarnings("ignore:the forward changes")
def test_a_log_that_no_layer_reads_is_none_either() -> None:
    class Logged(nn.Linear):
        log: list[Tensor]

        def forward(self, x: Tensor) -> Tensor:
            self.log.append(x.detach())
            return super().forward(x)

    layers, log = [Logged(8, 8) for _ in range(3)], list[Tensor]()
    for layer in layers:
        layer.log = log
    pipe(nn.Sequential(*layers), balance=[1, 2]).train(batches())


# --- the user's model, changed after the pipeline has copied it


def test_weights_loaded_into_the_users_model_later_are_warned_of() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    model.load_state_dict({name: entry * 0.5 for name, entry in model.state_dict().items()})
    with pytest.warns(UserWarning, match=r"has changed since .*load_state_dict\(\)"):
        pipeline.train(data)


def test_weights_loaded_into_it_after_a_run_are_warned_of_too() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    pipeline.train(data)
    pipeline.load_into(model)
    pipeline.train(data)  # on the very weights
    with torch.no_grad():
        model.get_parameter("2.bias").mul_(0.5)
    with pytest.warns(UserWarning, match=r"has changed since .*2\.bias say.*load_state_dict\(\)"):
        pipeline.train(data)


@pytest.mark.parametrize("first", [True, False])
def test_layers_unfrozen_in_the_users_model_later_are_warned_of(first: bool) -> None:
    model, data = network(nn.Tanh()), batches()
    model[0].requires_grad_(False)
    pipeline = pipe(model)
    if not first:
        pipeline.train(data)
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"0\.weight\.requires_grad say.*build the pipeline after"):
        pipeline.train(data)


def test_a_pipeline_that_is_given_the_weights_trains_on_them() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    model.load_state_dict({name: entry * 0.5 for name, entry in model.state_dict().items()})
    pipeline.load_state_dict(model.state_dict())
    pipeline.train(data)
    pipeline.load_into(model)
    pipeline.train(data)
    assert any(not torch.equal(t, model.state_dict()[n]) for n, t in pipeline.state_dict().items())


# --- what is trained, chosen between trainings

ADAM = partial(torch.optim.Adam, lr=0.01)


def tied() -> nn.Sequential:
    shared = nn.Linear(8, 8)
    return nn.Sequential(shared, nn.Tanh(), nn.Linear(8, 8), shared, nn.Linear(8, 3))


def assert_chosen_as_in_the_plain_loop(
    model: nn.Sequential, balance: list[int], choices: list[tuple[str, bool]], **settings: Any
) -> None:
    """Train and choose in turns; the plain loop has a new optimizer each time."""
    data, plain = batches(), copy.deepcopy(model)
    pipeline = pipe(model, balance=balance, optimizer=ADAM, **settings)
    for name, flag in choices:
        pipeline.requires_grad_(name, flag)
        for path, weight in plain.named_parameters(remove_duplicate=False):
            weight.requires_grad_(
                flag if f"{path}.".startswith(f"{name}.") else weight.requires_grad
            )
        pipeline.train(data)
        plain_loop(plain, ADAM, CE, data, microbatches=4)
    found = dict(pipeline.load_into(model).named_parameters())
    assert [n for n, weight in plain.named_parameters() if not torch.equal(found[n], weight)] == []
    pipeline.close()


CHOICES = [("0", False), ("4.bias", False), ("0", True), ("2", False), ("4", False), ("4", True)]


@pytest.mark.parametrize("balance", [[3, 2], [4, 1]], ids=str)
def test_weights_are_frozen_and_unfrozen_between_trainings(balance: list[int]) -> None:
    assert_chosen_as_in_the_plain_loop(tied(), balance, CHOICES)


@pytest.mark.slow
def test_processes_freeze_and_unfreeze_alike() -> None:
    assert_chosen_as_in_the_plain_loop(tied(), [3, 2], CHOICES, transport="distributed")


def test_a_stage_may_be_frozen_as_a_whole_and_trained_later() -> None:
    assert_chosen_as_in_the_plain_loop(network(nn.Tanh()), [2, 1], [("0", False), ("0", True)])


def test_what_a_recorded_model_trains_has_the_models_names() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.body(x).tanh())
            return y

    net, data = Net(), batches()
    pipeline = pk.Pipeline(
        pk.stages(net, data[0][0]), schedules.flush(2, 4), optimizer=SGD, loss=CE
    )
    pipeline.requires_grad_(["body"], False)
    pipeline.train(data)
    changed = different(pipeline.state_dict(), net.state_dict())
    assert len(changed) == 2
    assert all("head" in each for each in changed)


def test_modules_with_extra_states_are_frozen_too() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"n": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    model = nn.Sequential(Extra(8, 8), nn.Tanh(), nn.Linear(8, 3))
    assert_chosen_as_in_the_plain_loop(model, [2, 1], [("0", False), ("0.bias", True)])


def test_a_choice_in_both_is_no_change_to_be_warned_of() -> None:
    model, data = network(nn.Tanh()), batches()
    pipeline = pipe(model)
    pipeline.train(data)
    model[0].requires_grad_(False)
    pipeline.requires_grad_("0", False)
    pipeline.train(data)


def test_weights_that_are_not_there_are_not_chosen() -> None:
    with pytest.raises(ValueError, match=r"no parameter 'layer4', .*'0\.weight' say"):
        pipe(network(nn.Tanh())).requires_grad_("layer4")


# --- modes


def test_a_model_given_in_evaluation_mode_is_warned_of_once() -> None:
    pipeline, data = pipe(network(nn.Dropout(0.5)).eval()), batches()
    pipeline.evaluate(data)
    with pytest.warns(UserWarning, match=r"in evaluation mode.*call model\.train\(\)"):
        pipeline.train(data)
    pipeline.train(data)


@pytest.mark.parametrize("layer", [nn.Tanh(), nn.Dropout(0.0)], ids=["tanh", "dropout of 0"])
@pytest.mark.parametrize("recorded", [True, False])
def test_one_that_no_mode_changes_is_not(layer: nn.Module, recorded: bool) -> None:
    model, data = network(layer).eval(), batches()
    pipe(pk.stages(model, data[0][0]) if recorded else model).train(data)


def test_a_pipelined_module_follows_its_own_mode() -> None:
    model, data = network(nn.Dropout(0.5)).eval(), batches()
    module = pk.PipelinedModule(copy.deepcopy(model), [2, 1], chunks=1)
    assert torch.equal(module(data[0][0]), model(data[0][0]))
