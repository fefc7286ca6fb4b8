"""Random numbers of their own for layers, whatever other threads draw."""

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipekit.layers.random_operators import RNG_LOCK
from pipekit.layers.seeded import Seeded, layer_seed

CPU = torch.device("cpu")


class _FirstOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 2, num_layers=2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lstm(x)[0]
        return y


def _scripted(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # scripts are on their way out
        scripted: nn.Module = torch.jit.script(layer)
    return scripted


SCRIPTED = _scripted(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.RReLU()))
SCRIPTED_LSTM = _scripted(_FirstOutput())

DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(5),
    "normal": lambda: torch.normal(torch.zeros(5), 1.0),
    "permutation": lambda: torch.randperm(9),
    "integers": lambda: torch.randint(100, (5,)),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 4),
    "in place": lambda: torch.empty(5).exponential_(),
    "dropout": lambda: nn.Dropout(0.5)(torch.ones(20)),
    "dropout in place": lambda: nn.Dropout(0.5, inplace=True)(torch.ones(20)),
    "dropout 2d": lambda: nn.Dropout2d(0.5)(torch.ones(2, 9, 2, 2)),
    "alpha dropout": lambda: nn.AlphaDropout(0.5)(torch.ones(20)),
    "rrelu": lambda: nn.RReLU()(-torch.ones(20)),
    "attention": lambda: nn.functional.scaled_dot_product_attention(
        torch.ones(1, 4, 8), torch.ones(1, 4, 8), torch.ones(1, 4, 8), dropout_p=0.5
    ),
    "poisson": lambda: torch.poisson(torch.full((5,), 9.0)),
    "gumbel": lambda: nn.functional.gumbel_softmax(torch.ones(5)),
    "lstm": lambda: nn.LSTM(2, 2, num_layers=2, dropout=0.5)(torch.ones(3, 1, 2))[0].detach(),
    "gru": lambda: nn.GRU(2, 2, num_layers=2, dropout=0.5)(torch.ones(3, 1, 2))[0].detach(),
    "initialisation": lambda: nn.Linear(3, 3).weight.detach(),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3)(
        torch.ones(3, 2, 8)
    ).detach(),
    "into a tensor": lambda: torch.rand(5, out=torch.empty(5)),
    "default generator, said": lambda: torch.rand(5, generator=torch.default_generator),
    "other numbers' shape": lambda: torch.randn_like(torch.ones(5)),
    "native dropout": lambda: torch.native_dropout(torch.ones(20), 0.5, True)[0],
    "means and deviations": lambda: torch.normal(0.0, torch.ones(5)),
    "drawn one after another": lambda: torch.rand(3) + torch.randperm(3) + torch.randn(3),
    "vmap": lambda: torch.func.vmap(nn.Dropout(0.5), randomness="different")(torch.ones(3, 5)),
    "scripted": lambda: SCRIPTED(torch.ones(3, 4)).detach(),
    "scripted lstm": lambda: SCRIPTED_LSTM(torch.ones(3, 1, 2)).detach(),
    "backward": lambda: _gradient(_DrawsInBackward.apply),
    "checkpoint": lambda: _gradient(
        lambda x: checkpoint(nn.Dropout(0.5), x, use_reentrant=False, preserve_rng_state=False)
    ),
}


class _DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.rand(5)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.rand(5)


def _gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the output of a function and its gradient."""
    x = torch.ones(5, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert x.grad is not None
    return torch.cat([y.detach(), x.grad])


@pytest.mark.parametrize("name", DRAWS)
def test_as_if_the_generator_had_been_seeded(name: str) -> None:
    draw = DRAWS[name]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = [draw(), draw()]
    before = torch.get_rng_state()
    with Seeded(5, CPU) as seeded:
        got = [draw(), draw()]
    assert torch.equal(torch.get_rng_state(), before), "the user's generator is as it was"
    assert seeded.drew
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    with Seeded(6, CPU):
        assert not torch.equal(draw(), expected[0])


def test_a_generator_of_ones_own_is_drawn_from() -> None:
    def draw() -> Tensor:
        own = torch.Generator().manual_seed(7)
        return torch.stack([torch.rand(5, generator=own), torch.empty(5).uniform_(generator=own)])

    expected = draw()
    with Seeded(5, CPU):
        assert torch.equal(draw(), expected)


def test_other_operators_do_not_draw() -> None:
    with Seeded(5, CPU) as seeded:
        nn.Linear(3, 3).weight.data  # noqa: B018
    assert seeded.drew, "initialisation draws"
    layer = nn.Linear(3, 3)
    with Seeded(5, CPU) as seeded:
        layer(torch.ones(2, 3)).relu().sum()
        nn.Dropout(0.5).eval()(torch.ones(3))
    assert not seeded.drew


SWITCHED_OFF: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout of nothing": nn.Dropout(0.0),
    "dropout of nothing, in place": lambda x: nn.functional.dropout(x.clone(), 0.0, inplace=True),
    "channels of nothing": lambda x: nn.Dropout2d(0.0)(x[None]),
    "alpha dropout in evaluation": nn.AlphaDropout(0.5).eval(),
    "rrelu in evaluation": nn.RReLU().eval(),
    "native dropout in evaluation": lambda x: torch.native_dropout(x, 0.5, False)[0],
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
    "attention, said": lambda x: nn.functional.scaled_dot_product_attention(x, x, x, None, 0.0),
}


@pytest.mark.parametrize("name", SWITCHED_OFF)
def test_what_draws_nothing_by_its_arguments_borrows_no_generator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    before = torch.get_rng_state()
    expected = SWITCHED_OFF[name](x)
    assert torch.equal(torch.get_rng_state(), before), "torch itself draws nothing"

    def run(*_: object) -> None:
        raise AssertionError("a generator was borrowed")

    monkeypatch.setattr(Seeded, "run", run)
    with Seeded(5, CPU):
        assert torch.equal(SWITCHED_OFF[name](x), expected)


def test_native_dropout_of_nothing_draws_all_the_same() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    torch.native_dropout(torch.ones(3), 0.0, True)
    assert not torch.equal(torch.get_rng_state(), before)
    with Seeded(5, CPU) as seeded:
        torch.native_dropout(torch.ones(3), 0.0, True)
    assert seeded.drew


def test_gradients_are_those_of_the_mask() -> None:
    x = torch.ones(50, requires_grad=True)
    with Seeded(5, CPU):
        y = nn.Dropout(0.5)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_an_error_gives_the_generator_back() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), Seeded(5, CPU):
        torch.multinomial(-torch.rand(3), 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_do_not_disturb_one_another() -> None:
    def numbers(seed: int) -> Tensor:
        with Seeded(seed, CPU):
            return torch.stack([torch.rand(3) for _ in range(200)])

    alone = [numbers(seed) for seed in range(4)]
    together: dict[int, Tensor] = {}
    before = torch.get_rng_state()
    threads = [
        threading.Thread(target=lambda s=seed: together.__setitem__(s, numbers(s)))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(together[seed], alone[seed]) for seed in range(4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["dropout", "rrelu", "lstm", "transformer"])
def test_layers_on_the_cpu_draw_at_the_same_time(name: str) -> None:
    """While another thread draws, which holds the lock as long as it does."""

    def draw() -> None:
        with Seeded(5, CPU):
            drawn.append(DRAWS[name]())

    drawn: list[Tensor] = []
    thread = threading.Thread(target=draw, daemon=True)
    with RNG_LOCK:
        thread.start()
        thread.join(60)
        assert drawn


@pytest.mark.parametrize("name", ["dropout", "in place"])
def test_layers_that_torch_compiles(name: str) -> None:
    """Tracers run the operators on tensors without numbers."""
    torch.compiler.reset()
    compiled = torch.compile(DRAWS[name], backend="aot_eager")
    before = torch.get_rng_state()
    for seed in 5, 6:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            expected = [DRAWS[name](), DRAWS[name]()]
        with Seeded(seed, CPU):
            got = [compiled(), compiled()]
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


FIRST_AT_ONCE = """
import sys, threading, torch
from pipekit.layers.seeded import Seeded

def draw():
    barrier.wait()
    with Seeded(0, torch.device("cpu")):
        drawn.append(torch.rand(1).item())

sys.setswitchinterval(1e-6)
barrier, drawn = threading.Barrier(8), []
threads = [threading.Thread(target=draw) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(drawn) == 8 and len(set(drawn)) == 1, drawn
"""


def test_workers_may_be_the_first_all_at_once() -> None:
    """What catches operators is registered once in a process, whoever comes first."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_AT_ONCE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_seeds_differ_by_run_layer_and_microbatch() -> None:
    seeds = {layer_seed(s, n, k) for s in range(5) for n in range(20) for k in range(50)}
    assert len(seeds) == 5 * 20 * 50
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert layer_seed(1, 23, 4) != layer_seed(12, 3, 4)
