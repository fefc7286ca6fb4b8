"""Models as people bring them: masks, merged weights, routers' losses, gradients within a layer."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Self

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from pipekit.partition.recording.refusal import NotRecordable
from tests.partition.networks import Net, in_turn
from tests.people.plain import plain_loop

SGD = partial(torch.optim.SGD, lr=0.1)
X, Y = torch.linspace(-1, 1, 32).view(8, 4), torch.arange(8) % 4


def is_tracing() -> bool:
    """Ask as libraries do."""
    answer: bool = vars(torch.jit)["is_tracing"]()
    return answer


def loss(output: Any, target: Tensor) -> Tensor:
    if isinstance(output, tuple):  # with an auxiliary loss, which the model returns
        output, extra = output
        return F.cross_entropy(output, target) + torch.mean(extra)
    return F.cross_entropy(output, target)


def require_as_plain(model: nn.Module, layers: Any, batches: Any, m: int = 2, **how: Any) -> None:
    """Train the layers in two stages: losses and weights are those of the plain loop."""
    pipeline = pk.Pipeline(layers, schedules.flush(2, m), optimizer=SGD, loss=loss, **how)
    judge = copy.deepcopy(model)
    assert pipeline.train(batches).losses == plain_loop(judge, SGD, loss, batches, m)
    trained = pipeline.state_dict()
    pipeline.close()
    assert list(trained) == list(judge.state_dict())
    assert all(torch.equal(trained[name], each) for name, each in judge.state_dict().items())


# Masks


class Masked(nn.Module):
    """Leaves its mask out where it hides nothing, unless it is traced, as transformers does."""

    def __init__(self, asks: bool = True, block: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList((block or partial(nn.Linear, 4, 4))() for _ in range(3))
        self.asks = asks

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        tracing = self.asks and is_tracing()
        hidden = None if not tracing and mask.all() else mask
        for block in self.blocks:
            x = block(x).relu() if hidden is None else block(x).relu() * hidden
        return x


ONES = torch.ones(8, 4, dtype=torch.long)
PADDED = ONES.clone()
PADDED[1, 2:] = PADDED[6, 3:] = 0


@pytest.mark.parametrize(("example", "trained"), [*product([ONES, PADDED], repeat=2)])
def test_a_mask_is_recorded_as_under_tracing(example: Tensor, trained: Tensor) -> None:
    model = Masked()
    layers = pk.stages(model, (X, example))
    assert "under tracing" in str(layers)
    require_as_plain(model, layers, [((X, trained), Y)] * 2)


def test_a_model_that_does_something_else_under_tracing_is_refused() -> None:
    class Other(Masked):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if not is_tracing() and mask.all():
                return super().forward(x, mask)
            return nn.Sequential(*self.blocks)(x) * 2  # type: ignore[no-any-return]

    with pytest.raises(NotRecordable, match="reads numbers"):
        pk.stages(Other(asks=False), (X, ONES))


def test_what_fails_under_tracing_is_said_beside_the_mask_that_was_read() -> None:
    class Text(Masked):
        def forward(self, *given: Tensor) -> Any:
            return super().forward(*given), "no tensor"

    with pytest.raises(NotRecordable, match=r"reads numbers .*as under tracing, .*returns a str"):
        pk.stages(Text(), (X, ONES))


def test_a_block_is_not_told_that_it_is_traced() -> None:
    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if is_tracing() else 1)

    model = Masked(block=lambda: Asks(4, 4))
    require_as_plain(model, pk.stages(model, (X, PADDED)), [((X, PADDED), Y)])
    assert not is_tracing()


def test_a_model_without_a_read_is_not_told_that_it_is_traced() -> None:
    class Warns(Masked):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if is_tracing():
                raise RuntimeError("this model cannot be traced")
            for block in self.blocks:
                x = block(x) * mask
            return x

    model = Warns()
    layers = pk.stages(model, (X, PADDED))
    assert "under tracing" not in str(layers)
    require_as_plain(model, layers, [((X, ONES), Y)])


def test_zeros_and_ones_that_are_no_mask_stay_numbers_that_the_model_takes() -> None:
    class Typed(Masked):
        def __init__(self) -> None:
            super().__init__()
            self.types = nn.Embedding(1, 4)

        def forward(self, x: Tensor, mask: Tensor, types: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + self.types(types).mean(1), mask)

    model, zeros = Typed(), torch.zeros_like(ONES)
    require_as_plain(model, pk.stages(model, (X, PADDED, zeros)), [((X, PADDED, zeros), Y)])


# What is frozen


def test_frozen_is_named_and_an_example_without_padding_is_said() -> None:
    with pytest.warns(UserWarning, match=r"True, read from 'mask', in which all is 1.*padding"):
        pk.stages(Masked(asks=False), {"x": X, "mask": ONES}, freeze=True)
    with pytest.warns(UserWarning, match="read from 'mask'$"):
        pk.stages(Masked(asks=False), {"x": X, "mask": PADDED}, freeze=True)


def frozen_pipeline(example: Tensor) -> pk.Pipeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = pk.stages(Masked(asks=False), (X, example), freeze=True)
    return pk.Pipeline(layers, schedules.flush(2, 2), optimizer=SGD, loss=loss)


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_unlike_the_frozen_example_is_warned_of(first: bool) -> None:
    pipeline = frozen_pipeline(ONES)
    batches = [((X, PADDED), Y), ((X, ONES), Y)]
    with pytest.warns(UserWarning, match="read True in the example.*reads False.*padded one"):
        pipeline.train(batches if first else batches[::-1])


def test_batches_like_the_frozen_example_are_not_warned_of() -> None:
    padded = ONES.clone()
    padded[:, 3:] = 0
    for mask in (ONES, padded):
        model = Masked(asks=False)
        pipeline = frozen_pipeline(mask)
        pipeline.load_state_dict(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = pipeline.train([((X, mask), Y)] * 2).losses
        assert losses == plain_loop(model, SGD, loss, [((X, mask), Y)] * 2, 2)


# Modules whose train() does more


class Lora(nn.Linear):
    """Adds its product to its weight in evaluation, as loralib does."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.a, self.b = (nn.Parameter(torch.randn(shape)) for shape in ((2, width), (width, 2)))
        self.weight.requires_grad_(False)
        self.merged = False

    def train(self, mode: bool = True) -> "Lora":
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (1 - 2 * mode) * (self.b @ self.a)
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.merged else y + x @ self.a.T @ self.b.T


def lora() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(Lora(4), nn.Tanh()) for _ in range(3)))


def wrapped(*blocks: nn.Module) -> Net:
    return Net(in_turn, blocks)


@pytest.mark.parametrize("mode", [True, False])
def test_recording_leaves_merged_weights_and_flags_as_they_are(mode: bool) -> None:
    model = wrapped(*lora()).train(mode)
    before = copy.deepcopy(model)
    pk.stages(model, X)
    assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))
    for one, other in zip(model.modules(), before.modules(), strict=True):
        assert one.training == other.training
        assert getattr(one, "merged", None) == getattr(other, "merged", None)


def test_what_merges_trains_as_in_a_plain_loop() -> None:
    model = wrapped(*lora())
    layers = pk.stages(model, X)
    require_as_plain(model, layers, [(X, Y)] * 2)
    loss(model(X), Y).backward()  # the user's own loop goes on
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_evaluation_leaves_no_merged_weights() -> None:
    model, batches = lora(), [(X, Y)] * 2
    judge = copy.deepcopy(model)
    pipeline = pk.Pipeline(model, schedules.flush(2, 2), optimizer=SGD, loss=loss)
    losses = pipeline.train(batches).losses
    assert losses == plain_loop(judge, SGD, loss, batches, 2)
    evaluated = pipeline.evaluate(batches[:1])
    assert evaluated == pytest.approx(loss(judge(X), Y).item(), rel=1e-6)
    pipeline.load_into(model)
    assert torch.equal(model(X), judge(X))
    assert pipeline.train(batches).losses == plain_loop(judge, SGD, loss, batches, 2)
    pipeline.close()


def test_a_module_that_stages_share_stays_in_evaluation_until_all_have_ended() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        for block in model.blocks:
            x = model.drop(block(x))
        return x

    model = Net(forward, drop=nn.Dropout(0.5))
    pipeline = pk.Pipeline(pk.stages(model, X), schedules.flush(3, 2), optimizer=SGD, loss=loss)
    pipeline.train([(X, Y)])
    pipeline.load_into(model).eval()
    batches = [(X, Y)] * 20
    assert pipeline.evaluate(batches) == pytest.approx(loss(model(X), Y).item(), rel=1e-6)


class Scaled(NamedTuple("Scaled", [("x", Tensor)])):
    __slots__ = ()

    def __new__(cls, x: Tensor, by: float = 0.5) -> Self:
        return super().__new__(cls, x * by)


class Scales(nn.Linear):
    def forward(self, x: Any) -> Any:
        return Scaled(super().forward(getattr(x, "x", x)))


class Opens(nn.Module):
    def forward(self, scaled: Any) -> Tensor:
        return scaled.x  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("recorded", "transport"), [(False, "threads"), (True, "threads"), (True, "distributed")]
)
def test_a_named_tuple_is_made_once(recorded: bool, transport: str) -> None:
    blocks = Scales(4, 4), Scales(4, 4), Opens()
    model = Net(in_turn, blocks) if recorded else nn.Sequential(*blocks)
    layers: Any = pk.stages(model, X) if recorded else model
    require_as_plain(model, layers, [(X, Y)] * 2, transport=transport)


def test_a_cache_that_train_fills_or_drops_is_left() -> None:
    class Caches(nn.Linear):
        kept: Tensor

        def train(self, mode: bool = True) -> "Caches":
            super().train(mode)
            if mode and hasattr(self, "kept"):
                del self.kept
            elif not mode:
                self.kept = self.weight.detach() * 2
            return self

    model = wrapped(*(Caches(4, 4) for _ in range(3))).eval()
    kept = [block.kept for block in model.blocks]
    pk.stages(model, X)
    assert all(block.kept is each for block, each in zip(model.blocks, kept, strict=True))


def test_a_train_that_exchanges_parameters_is_put_back() -> None:
    class Fuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def train(self, mode: bool = True) -> "Fuses":
            super().train(mode)
            if not mode and hasattr(self, "two"):
                self.spare = self.two
                del self.two
            elif mode and hasattr(self, "spare"):
                self.two = self.spare
                del self.spare
            return self

        def forward(self, x: Tensor) -> Tensor:
            other = self.spare if hasattr(self, "spare") else self.two
            return self.one(x) + other(x)  # type: ignore[no-any-return]

    pipeline = pk.Pipeline(
        nn.Sequential(Fuses(), Fuses()), schedules.flush(2, 1), optimizer=SGD, loss=loss
    )
    names = list(pipeline.state_dict())
    pipeline.train([(X, Y)])
    pipeline.evaluate([(X, Y)])
    assert list(pipeline.state_dict()) == names


# Auxiliary losses, gradients within a layer, inputs that are let require gradients


class Routed(nn.Module):
    """Collects what its blocks' routers give by hooks, as transformers does."""

    def __init__(self, lazily: bool, calls: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Expert(calls) for _ in range(3))
        self.found: list[Tensor] = []
        if not lazily:
            self.install()

    installed = False

    def install(self) -> None:
        for block in self.blocks:
            block.router.register_forward_hook(self.collect)  # type: ignore[union-attr]
        self.installed = True

    def collect(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if _collected is not None:
            _collected.append(output)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        global _collected
        found: list[Tensor] = []
        if not self.installed:
            self.install()
        _collected = found
        for block in self.blocks:
            x = block(x)
        _collected = None
        return x, torch.stack([each.softmax(-1).square().mean(-1) for each in found]).mean(0)


_collected: list[Tensor] | None = None


class Expert(nn.Module):
    def __init__(self, calls: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(4, 2), nn.Linear(4, 8)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            chosen = self.router(x).softmax(-1)
            x = x + (self.experts(x).view(-1, 2, 4) * chosen[..., None]).sum(1)
        return x


@pytest.mark.parametrize(("lazily", "calls"), [(False, 1), (True, 1), (False, 2)])
def test_a_loss_of_routers_that_hooks_collect_trains(lazily: bool, calls: int) -> None:
    model = Routed(lazily, calls)
    layers = pk.stages(model, X)
    require_as_plain(model, layers, [(X, Y)] * 2)
    hooks = sum(len(each._forward_hooks) for each in model.modules())
    model(X)
    assert hooks == sum(len(each._forward_hooks) for each in model.modules()) == 3


class Force(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_() if x.is_leaf else x
            return torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_layer_that_computes_a_gradient_trains(recorded: bool) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), Force(), nn.Linear(4, 4))
    model = wrapped(*layers)
    if recorded:
        require_as_plain(model, pk.stages(model, X), [(X, Y)] * 2)
    else:
        require_as_plain(layers, layers, [(X, Y)] * 2)


def test_a_weight_that_the_model_reads_and_returns_is_trained() -> None:
    model = Net(lambda m, x: (in_turn(m, x * m.scale), m.scale), [nn.Linear(4, 4) for _ in "123"])
    model.scale = nn.Parameter(torch.ones(1))
    require_as_plain(model, pk.stages(model, X), [(X, Y)] * 2)


class Jagged(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor([*x[:, None]], layout=torch.jagged)
        return torch.cat(super().forward(rows).unbind())


def test_a_layer_of_nested_tensors_trains() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), Jagged(4, 4), nn.Linear(4, 4))
    require_as_plain(layers, layers, [(X, Y)] * 2)


def test_an_input_that_is_let_require_gradients_trains() -> None:
    def forward(model: Any, x: Tensor) -> Any:
        x = x[:, None]
        if model.training:
            x.requires_grad = True
        return in_turn(model, x)[:, 0]

    model = Net(forward)
    require_as_plain(model, pk.stages(model, X), [(X, Y)] * 2)


@pytest.mark.parametrize("replicas", [[2, 1], [1, 2]])
def test_tied_weights_with_unequal_replicas_are_refused_with_a_remedy(replicas: list[int]) -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    with pytest.raises(pk.ScheduleError, match=r"share and stages.*have equal replicas$"):
        pk.Pipeline(tied, schedules.pipedream(replicas), optimizer=SGD, loss=loss, balance=[2, 1])


# Size


def test_recording_copies_no_weights_and_keeps_one_set_of_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = wrapped(*(nn.Linear(64, 64) for _ in range(4)))
    cloned, clone = [], Tensor.clone

    def counted(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        cloned.append(tuple(tensor.shape))
        return clone(tensor, *args, **options)

    monkeypatch.setattr(Tensor, "clone", counted)
    pk.stages(model, torch.randn(4, 64))
    assert (64, 64) not in cloned
