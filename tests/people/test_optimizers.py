"""Users' optimizers that look at all parameters, and forwards that edit weights."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CyclicLR, LambdaLR

import pipekit as pk
from pipekit import oracle, schedules
from tests.engine.examples import different
from tests.people.plain import plain_loop
from tests.people.test_losses import data, equal, net, no_word

CE = F.cross_entropy
Factory = Callable[[Any], torch.optim.Optimizer]


class Normed(torch.optim.SGD):
    """Divides gradients by their norm over all parameters."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for parameter in parameters:
            parameter.grad /= norm
        super().step()


class TrustRatio(torch.optim.SGD):
    """As LARS: the norms of each parameter alone."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.grad *= parameter.detach().norm() / (parameter.grad.norm() + 1e-8)
        super().step()


class Noisy(torch.optim.SGD):
    generator: torch.Generator | None = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"]):
            parameter.grad += torch.randn(parameter.shape, generator=self.generator)
        super().step()


def with_its_own(parameters: Any) -> torch.optim.Optimizer:
    alone = Noisy(parameters, lr=0.1, momentum=0.9)
    alone.generator = torch.Generator()
    return alone


def clipped(parameters: Any, kind: Any = torch.optim.SGD) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = kind(parameters, lr=0.1)

    def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        torch.nn.utils.clip_grad_norm_(
            [p for group in optimizer.param_groups for p in group["params"]], 0.1
        )

    optimizer.register_step_pre_hook(clip)
    return optimizer


def piped(optimizer: Factory, stages: int = 2, **options: Any) -> pk.Pipeline:
    schedule = schedules.flush(stages, 1)
    return pk.Pipeline(net(), schedule, optimizer=optimizer, loss=CE, **options)


class ById(torch.optim.SGD):
    """Keeps a sum by the identity of each parameter, and not in ``state``."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        sums = self.__dict__.setdefault("sums", {})
        for p in (p for group in self.param_groups for p in group["params"]):
            sums[id(p)] = p.grad = p.grad + 0.5 * sums.get(id(p), 0.0)
        super().step()


def clamped(parameters: Any) -> torch.optim.Optimizer:
    """Holds the list of parameters that it was given."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def clamp(*_: Any) -> None:
        for parameter in parameters:
            parameter.data.clamp_(-0.1, 0.1)

    optimizer.register_step_post_hook(clamp)
    return optimizer


def matrices(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.dim() > 1], lr=0.1)


def matrices_as_a_group(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [p for p in parameters if p.dim() > 1]}], lr=0.1)


@pytest.mark.parametrize("method", ["2bw", "pipedream"])
@pytest.mark.parametrize("optimizer", [partial(ById, lr=0.1), clamped, matrices])
def test_one_that_holds_on_to_parameters_does_so_in_all_weight_versions(
    optimizer: Factory, method: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.LayerNorm(3))
    m, table = {"2bw": (2, schedules.two_bw(2, 2)), "pipedream": (1, schedules.pipedream(2))}[
        method
    ]
    pipeline = pk.Pipeline(model, table, balance=[2, 1], optimizer=optimizer, loss=CE)
    pipeline.train(data(4))
    same = matrices_as_a_group if optimizer is matrices else optimizer
    judge = oracle.train(
        model, data(4), method=method, balance=[2, 1], microbatches=m, optimizer=same, loss=CE
    )
    for name, weight in judge.weights[-1].items():
        assert torch.equal(weight, pipeline.state_dict()[name]), name


@pytest.mark.parametrize("balance", [[2, 1], [1, 2]], ids=str)
def test_a_scheduler_has_a_rate_for_each_group_in_order(balance: list[int]) -> None:
    """Also in a stage that has one of the groups, or the second one first."""

    def rates(optimizer: torch.optim.Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, [lambda t: 0.5**t, lambda t: 0.0])

    def by_groups(parameters: Any) -> torch.optim.Optimizer:
        parameters = [*parameters]
        some = ([p for p in parameters if (p.dim() > 1) == wanted] for wanted in (True, False))
        return torch.optim.SGD([{"params": each} for each in some], lr=0.1)

    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    updates = pk.Updates(groups=lambda name, p: {"dampening": p.dim() < 2}, lr_scheduler=rates)
    how: dict[str, Any] = {"balance": balance, "loss": CE}
    table = schedules.flush(2, 2)
    pipeline = pk.Pipeline(
        model, table, optimizer=partial(torch.optim.SGD, lr=0.1), updates=updates, **how
    )
    pipeline.train(data(4))
    how |= {"method": "flush", "microbatches": 2, "lr_scheduler": rates}
    judge = oracle.train(model, data(4), optimizer=by_groups, **how)
    for name, weight in judge.weights[-1].items():
        assert torch.equal(weight, pipeline.state_dict()[name]), name


class Unfinished(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters)}]

    def step(self, closure: Any = None) -> None: ...  # type: ignore[override]


def test_one_that_is_not_whole_is_refused() -> None:
    with pytest.raises(TypeError, match=r"incomplete.*inherit from torch.optim.Optimizer.*super"):
        piped(Unfinished).train(data())


@pytest.mark.parametrize(
    "optimizer",
    [partial(Normed, lr=0.1), clipped, partial(clipped, kind=torch.optim.Adam)],
    ids=["own norm", "hook", "hook of Adam, which forgets a factor that stays"],
)
@pytest.mark.parametrize("groups", [None, lambda name, weight: {}], ids=["alone", "groups"])
def test_one_that_looks_at_all_parameters_is_warned_of(optimizer: Factory, groups: Any) -> None:
    pipeline = piped(optimizer, updates=pk.Updates(groups=groups))
    with pytest.warns(UserWarning, match=r"depends on all of its parameters.*clip_norm") as said:
        pipeline.train(data())
    assert len(said) == 1
    model = net()
    with no_word():  # one stage has them all
        pipeline = piped(optimizer, 1)
        losses = pipeline.train(data()).losses
    equal(pipeline, losses, model, plain_loop(model, optimizer, CE, data()))


RIGHT: dict[str, Factory] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=0.1),
    "adafactor": partial(torch.optim.Adafactor, lr=0.1),
    "foreach": partial(torch.optim.AdamW, lr=0.1, foreach=True),
    "trust ratio": partial(TrustRatio, lr=0.1),
}


@pytest.mark.parametrize("name", RIGHT)
def test_one_with_a_rule_for_each_parameter_is_right(name: str) -> None:
    model = net()
    with no_word():
        pipeline = piped(RIGHT[name])
        losses = pipeline.train(data()).losses
    equal(pipeline, losses, model, plain_loop(model, RIGHT[name], CE, data()))


def test_clipping_by_the_pipelines_own_option_is_right() -> None:
    model = net()

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    with no_word():
        pipeline = piped(sgd, updates=pk.Updates(clip_norm=0.1))
        losses = pipeline.train(data()).losses
    equal(pipeline, losses, model, plain_loop(model, clipped, CE, data()))


@pytest.mark.parametrize("settings", [{"clip_norm": 0.1}, {"loss_scale": 8.0}])
def test_sparse_gradients_are_clipped_and_scaled(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Tanh(), nn.Linear(8, 4))
    words = [(torch.randint(20, (8, 4)), y) for _, y in data()]
    make = clipped if "clip_norm" in settings else partial(torch.optim.SGD, lr=0.1)
    trained, dense, embedding = copy.deepcopy(model), model, cast(Any, model[0])
    embedding.sparse = False
    pipeline = pk.Pipeline(
        trained,
        schedules.flush(2, 1),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=CE,
        updates=pk.Updates(**settings),
    )
    losses = pipeline.train(words).losses
    equal(pipeline, losses, dense, plain_loop(dense, make, CE, words))


class Apart(torch.optim.Optimizer):
    """Two optimizers in one, with a state_dict() of its own or without."""

    def __init__(self, parameters: Any, whole: bool = True) -> None:
        parameters, self.whole = [*parameters], whole
        super().__init__(parameters, {"lr": None})
        some = ([p for p in parameters if (p.dim() > 1) == wanted] for wanted in (True, False))
        self.inner = [torch.optim.SGD(each, lr=0.1, momentum=0.9) for each in some]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.inner:
            each.step()

    def state_dict(self) -> Any:
        return super().state_dict() if self.whole else {"inner": self.inner[0].state_dict()}


def test_one_with_a_state_of_its_own_needs_no_rate() -> None:
    model, rates = net(), list[Any]()
    pipeline = piped(Apart)
    losses = pipeline.train(data(), on_batch=lambda done: rates.append(done.learning_rates))
    assert {*rates} == {()}
    equal(pipeline, losses.losses, model, plain_loop(model, Apart, CE, data()))
    with pytest.raises(
        TypeError, match=r"incomplete \(its state_dict\(\) lacks param_groups, state"
    ):
        piped(partial(Apart, whole=False)).train(data())


@pytest.mark.parametrize("kept", [lambda p: p, id], ids=["by object", "by id"])
def test_one_that_chooses_the_users_own_parameters_is_refused(kept: Callable[[Any], Any]) -> None:
    """All of them would be in the other group: stages train copies."""
    model = net()
    chosen = {*map(kept, model[-1].parameters())}

    def grouped(parameters: Any) -> torch.optim.Optimizer:
        some = ([p for p in parameters if (kept(p) in chosen) == own] for own in (True, False))
        return torch.optim.SGD([{"params": each} for each in some], lr=0.1)

    pipeline = pk.Pipeline(model, schedules.flush(2, 1), optimizer=grouped, loss=CE)
    with pytest.raises(ValueError, match=r"chooses among the parameters of the model.*groups="):
        pipeline.train(data(1))


def test_one_that_steps_its_own_scheduler_is_right() -> None:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.1)
        rates = LambdaLR(made, lambda t: 0.5**t)  # which replaces made.step
        made.register_step_post_hook(lambda *_: rates.step())
        return made

    model, pipeline = net(), piped(optimizer)
    losses = pipeline.train(data()).losses
    equal(pipeline, losses, model, plain_loop(model, optimizer, CE, data()))


def test_a_random_one_is_warned_of_unless_it_has_a_generator() -> None:
    made: list[torch.optim.Optimizer] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(Noisy(parameters, lr=0.1))
        return made[-1]

    with pytest.warns(UserWarning, match=r"optimizer draws random.*torch.Generator\(\)"):
        piped(optimizer).train(data(1))
    assert len(made) == 2  # for stages only, not for the question
    with no_word():
        piped(with_its_own).train(data(1))


def test_a_resumed_one_draws_on_and_its_cycled_momentum_is_not_a_change(tmp_path: Path) -> None:
    def made() -> pk.Pipeline:
        return piped(with_its_own, updates=pk.Updates(lr_scheduler=lambda o: CyclicLR(o, 0.1, 0.5)))

    with no_word():
        made().train(data(4), on_batch=lambda done: done.number == 1, checkpoints=tmp_path)
        pipeline, whole = made(), made()
        pipeline.resume(tmp_path)
        assert pipeline.train(data(4)).losses == whole.train(data(4)).losses
    assert different(pipeline.state_dict(), whole.state_dict()) == []


class Momentum(nn.Module):
    """An encoder, and one that follows it: MoCo, BYOL."""

    def __init__(self, gradients: bool) -> None:
        super().__init__()
        self.gradients, self.q = gradients, nn.Linear(8, 8)
        self.k = copy.deepcopy(self.q).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for q, k in zip(self.q.parameters(), self.k.parameters(), strict=True):
                k.mul_(0.9).add_(q, alpha=0.1)
        with torch.set_grad_enabled(self.gradients and torch.is_grad_enabled()):
            key = self.k(x)
        product: Tensor = key * self.q(x)
        return product


def momentum(gradients: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Momentum(gradients), nn.Linear(8, 3))


def trained(
    model: nn.Sequential, m: int, balance: list[int], **options: Any
) -> tuple[pk.Pipeline, list[float]]:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1)

    schedule = schedules.flush(2, m)
    pipeline = pk.Pipeline(model, schedule, optimizer=sgd, loss=CE, balance=balance, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the edits
        losses = pipeline.train(data()).losses
    plain = copy.deepcopy(model)
    equal(pipeline, losses, plain, plain_loop(plain, sgd, CE, data(), microbatches=m))
    return pipeline, losses


@pytest.mark.parametrize("m", [2, 4])
def test_a_momentum_encoder_that_a_backward_needs_is_refused(m: int) -> None:
    with pytest.raises(ValueError, match=r"layer 1 edits 'k.weight'.*under torch.no_grad\(\)"):
        trained(momentum(True), m, [2, 1])


@pytest.mark.parametrize(
    ("gradients", "m", "balance"),
    [(False, 2, [2, 1]), (False, 4, [1, 2]), (True, 1, [2, 1]), (True, 4, [1, 2])],
    ids=["no gradient", "no gradient, last", "one microbatch", "one under way"],
)
def test_one_that_no_backward_needs_is_the_plain_loops(
    gradients: bool, m: int, balance: list[int]
) -> None:
    trained(momentum(gradients), m, balance)
