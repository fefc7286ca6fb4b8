"""Skip connections between stages: straight from the one to the other, and the same training."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipekit import Schedule, schedules
from pipekit.clusters import flat
from pipekit.layers.skips import Skippable, inlined
from tests.engine.examples import Trained, by_equations, cut, data, pipeline, trained, unlike
from tests.engine.gloo import over_gloo
from tests.engine.parametrized import TRANSPORTS


class Stash(Skippable):
    """Leaves its input, and its number of rows' parity, which has no gradient."""

    stashes = ("x", "odd")

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.stash("x", x * 2)
        self.stash("odd", torch.tensor([len(x) % 2]))
        y: Tensor = self.linear(x)
        return y


class Pop(Skippable):
    pops = ("x", "odd")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.pop("x") + self.pop("odd")
        return y


def model() -> nn.Sequential:
    """Two skips, one within the other; 8 layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6),
        Stash().isolate("outer"),
        nn.Dropout(0.3),
        Stash().isolate("inner"),
        nn.Linear(6, 6),
        Pop().isolate("inner"),
        Pop().isolate("outer"),
        nn.Linear(6, 3),
    )


METHODS: dict[str, Callable[[int], Schedule]] = {
    "gpipe": lambda stages: schedules.gpipe(stages, 2),
    "2bw": lambda stages: schedules.two_bw(stages, stages),
    "pipedream": schedules.pipedream,
}


@settings(max_examples=8)
@given(
    st.sets(st.integers(1, 7), max_size=5),
    st.sampled_from(sorted(METHODS)),
    st.sampled_from(["never", "except_last", "always"]),
)
def test_weights_are_the_equations_wherever_the_model_is_cut(
    edges: set[int], method: str, recompute: str
) -> None:
    balance = cut(8, edges)
    batches = data(4, rows=[12, 13, 12, 15])
    pipe = pipeline(model(), METHODS[method](len(balance)), balance, recompute=recompute)
    m = len(balance) if method == "2bw" else 2
    truth = by_equations(model(), batches, method, balance, m=m)
    assert unlike(trained(pipe, batches), truth) == []


def outcome(method: str, **options: Any) -> Trained:
    """Of four stages; the last loss is that of an evaluation."""
    batches = data(3, rows=[8, 9, 8])
    pipe = pipeline(model(), METHODS[method](4), [2, 2, 2, 2], **options)
    losses, state = trained(pipe, batches)
    return Trained([*losses, pipe.evaluate(batches)], state)


@pytest.mark.parametrize("method", ["2bw", "pipedream"])
def test_processes_and_slow_links_give_the_bits_of_threads(method: str) -> None:
    here = outcome(method)
    for options in {"transport": "distributed"}, {"cluster": flat(4, 1e6)}:
        assert unlike(outcome(method, **options), here) == []


def test_torchrun_too() -> None:
    for there in over_gloo(lambda: outcome("pipedream", transport="distributed"), 4):
        assert unlike(there, outcome("pipedream")) == []


@TRANSPORTS
def test_a_skip_does_not_pass_through_the_stages_between(transport: str) -> None:
    """Outer goes from stage 1 to stage 3, inner within stage 2; rows of 6 numbers."""
    pipe = pipeline(model(), schedules.gpipe(4, 2), [1, 2, 3, 2], transport=transport)
    sent = pipe.train(data(1, rows=8)).traffic.set_index(["source", "destination", "purpose"])
    row, parity, main = 6 * 4, 8, 8 * 6 * 4
    assert sent["bytes"].to_dict() == {
        (0, 1, "activation"): main,
        (1, 2, "activation"): main,
        (2, 3, "activation"): main,
        (1, 3, "activation"): 8 * row + 2 * parity,
        (1, 0, "gradient"): main,
        (2, 1, "gradient"): main,
        (3, 2, "gradient"): main,
        (3, 1, "gradient"): 8 * row,
    }


def test_replicas_send_skips_to_the_worker_of_the_minibatch() -> None:
    batches = data(5)
    pipe = pipeline(model(), schedules.pipedream([2, 1, 2]), [2, 3, 3])
    truth = by_equations(model(), batches, "pipedream", [2, 3, 3], replicas=[2, 1, 2])
    assert unlike(trained(pipe, batches), truth) == []


# ---- riding along, for comparison


def test_inlined_skips_cross_every_boundary_on_their_way() -> None:
    """Outer from stage 1 to stage 3, by way of 2; inner within 2.  Else as straight skips."""
    pipe = pipeline(inlined(model()), schedules.gpipe(4, 2), [1, 2, 3, 2])
    sent = pipe.train(data(1, rows=8)).traffic.set_index(["source", "destination", "purpose"])
    main = skip = 8 * 6 * 4
    parity = 2 * 8
    assert sent["bytes"].to_dict() == {
        (0, 1, "activation"): main,
        (1, 2, "activation"): main + skip + parity,
        (2, 3, "activation"): main + skip + parity,
        (1, 0, "gradient"): main,
        (2, 1, "gradient"): main + skip,
        (3, 2, "gradient"): main + skip,
    }
