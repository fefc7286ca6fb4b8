"""Mixed precision judged: autocast, loss scales and skipped updates, bit for bit.

The judges are the papers' equations, and PyTorch's own autocast and GradScaler.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from pipekit import LossScale, Pipeline, Run, Schedule, Watch, oracle, schedules
from pipekit.engine.checkpoints import files as checkpoints
from tests.engine.examples import (
    METHODS,
    OPTIMIZERS,
    Batches,
    On,
    by_equations,
    cut,
    data,
    different,
    in_backward,
    mlp,
    pipeline,
    values,
)

BF16, FP16 = torch.bfloat16, torch.float16


class Fragile(nn.Linear):
    """A layer whose weight's gradient overflows, and no other, as in a narrow type."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, limit = pair
        weight = in_backward(
            lambda gradient: gradient.masked_fill(gradient.abs() > limit.min(), math.inf),
            self.weight,
        )
        return nn.functional.linear(x, weight, self.bias), limit


class Last(nn.Linear):
    """Lets go of the limit."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(pair[0])


def fragile(place: int) -> nn.Sequential:
    """Six layers that pass (x, limit) on; one of them can overflow."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [On(0, nn.Linear(6, 6)) for _ in range(3)]
    layers.insert(1, On(0, nn.Sequential(nn.Tanh(), nn.Dropout(0.3))))
    layers.insert(place, Fragile(6, 6))
    return nn.Sequential(*layers, Last(6, 3))


def limited(limits: Sequence[float], rows: int = 8) -> Batches:
    """Batches in which a fragile layer has these limits."""
    return [
        ((x, torch.full((rows, 1), limit)), y)
        for (x, y), limit in zip(data(len(limits), rows), limits, strict=True)
    ]


REPLICATED: dict[str, tuple[Schedule, list[int], int]] = {
    "asp": (schedules.asp(3), [3], 1),
    "pipedream": (schedules.pipedream([2, 2]), [2, 2], 1),
    "2bw": (schedules.replicate(schedules.two_bw(2, 2), 2), [2, 2], 4),
}
"""By their names in the oracle: schedule, workers of each stage, microbatches of a batch."""


def warm_up(optimizer: Optimizer) -> LRScheduler:
    """Two updates of linear warm-up, then four of linear decay."""
    return SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.25, total_iters=2), LinearLR(optimizer, 1.0, 0.1, total_iters=4)],
        milestones=[2],
    )


def trained(pipe: Pipeline, batches: Batches) -> tuple[Run, list[Any]]:
    """Train; return the run, and of each stage what its optimizer keeps of each parameter."""
    with tempfile.TemporaryDirectory() as folder:
        run = pipe.train(batches, watch=Watch(trace=False), checkpoints=folder)
        home = checkpoints.newest(Path(folder))
        assert home
        parts: dict[int, Any] = {}
        for part in checkpoints.parts_of(home):
            parts.setdefault(part.stage, checkpoints.load(part))
    states = []
    for content in parts.values():
        kept = content["state"]["optimizer"] or {}
        own = [kept[name] for name in content["parameters"] if name in kept]
        # One parameter may have several names.
        states.append(list({id(each["state"]): each for each in own}.values()))
    return run, states


def assert_same(pipe: Pipeline, run: Run, states: list[Any], truth: oracle.OracleRun) -> None:
    """Losses, scales, skipped updates, weights and the optimizers' states."""
    assert run.losses == truth.losses
    assert list(run.loss_scales) == truth.loss_scales
    assert list(run.skipped_updates) == truth.skipped
    state = pipe.state_dict()
    assert different({k: state[k] for k in truth.weights[-1]}, truth.weights[-1]) == []
    for own, other in zip(states, truth.optimizers, strict=True):
        numbered = {
            number: {
                "state": other["state"].get(number, {}),
                "options": {key: value for key, value in group.items() if key != "params"},
            }
            for group in other.get("param_groups", ())
            for number in group["params"]
        }
        in_order = dict(enumerate(own))
        torch.testing.assert_close(in_order, numbered, rtol=0, atol=0)


def judge(method: str, batches: Batches, balance: list[int], place: int, **options: Any) -> Any:
    """Train both ways; return the pipeline's run."""
    pipe = pipeline(fragile(place), method, balance, **options)
    run, states = trained(pipe, batches)
    truth = by_equations(fragile(place), batches, method, balance, **options)
    assert_same(pipe, run, states, truth)
    return run


def judge_replicated(
    model: nn.Sequential, method: str, batches: Batches, transport: str
) -> tuple[Pipeline, Run]:
    """Train both ways with a scale that changes; return the pipeline and its run."""
    schedule, replicas, m = REPLICATED[method]
    how: dict[str, Any] = {
        "balance": [6] if len(replicas) == 1 else [3, 3],
        "optimizer": OPTIMIZERS["adam"],
        "loss": nn.MSELoss(),
        "loss_scale": LossScale(2.0**16, interval=2),
        "clip_norm": 0.1,
    }
    pipe = Pipeline(model, schedule, transport=transport, **values(**how))
    run, states = trained(pipe, batches)
    truth = oracle.train(model, batches, method=method, replicas=replicas, microbatches=m, **how)
    assert_same(pipe, run, states, truth)
    return pipe, run


# --- Every method, to the bit --------------------------------------------------------------------

rules = st.builds(
    LossScale,
    initial=st.sampled_from([1.0, 1000.0, 2.0**12, 2.0**20]),
    growth=st.sampled_from([1.0, 2.0]),
    backoff=st.sampled_from([0.5, 2.0**-6]),
    interval=st.integers(1, 3),
)


@settings(max_examples=3)
@given(data_=st.data())
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_its_equation(method: str, data_: st.DataObject) -> None:
    draw = data_.draw
    balance = cut(6, draw(st.sets(st.integers(1, 5), max_size=3), "edges"))
    scale = draw(st.none() | rules, "loss_scale")
    # Without skipping, one overflow would make all later weights NaN.
    limits = st.sampled_from([math.inf, math.inf, 100.0, 1.0, 0.0] if scale else [math.inf])
    judge(
        method,
        limited(draw(st.lists(limits, min_size=1, max_size=6), "limits")),
        balance,
        draw(st.integers(0, 4), "place"),
        optimizer=OPTIMIZERS[draw(st.sampled_from(["nesterov", "adam"]), "optimizer")],
        autocast=draw(st.sampled_from([None, BF16, FP16]), "autocast"),
        loss_scale=scale,
        clip_norm=draw(st.sampled_from([None, 0.1]), "clip_norm"),
        lr_scheduler=draw(st.sampled_from([None, warm_up]), "lr_scheduler"),
        recompute=draw(st.sampled_from(["never", "except_last", "always"]), "recompute")
        if method != "no_stashing"
        else "never",
    )


@pytest.mark.parametrize(("method", "clip_norm"), [("2bw", 0.1), ("pipedream", None)])
def test_processes_too(method: str, clip_norm: float | None) -> None:
    run = judge(
        method,
        limited([100.0, 100.0, math.inf, 0.0, 0.0, math.inf]),
        [2, 2, 2],
        3,
        transport="distributed",
        autocast=BF16,
        loss_scale=LossScale(2.0**16, interval=2),
        clip_norm=clip_norm,
    )
    assert run.skipped_updates


@pytest.mark.parametrize(
    ("method", "transport"), [("asp", "threads"), ("pipedream", "threads"), ("2bw", "distributed")]
)
def test_stages_on_several_workers(method: str, transport: str) -> None:
    batches = limited([100.0, math.inf, 0.0, math.inf, 100.0, math.inf, math.inf])
    _, run = judge_replicated(fragile(1), method, batches, transport)
    assert run.skipped_updates


# --- PyTorch's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("initial", [2.0**26, 1000.0])
def test_it_is_autocast_and_grad_scaler(dtype: torch.dtype, initial: float) -> None:
    """Gradient clipping in between, as PyTorch's recipe has it; float16 overflows of itself."""
    model, batches = mlp(6, 6, 6, 3), data(9)
    scaler = torch.amp.GradScaler("cpu", initial, growth_interval=2)
    pipe = pipeline(
        model,
        "gpipe",
        [1, 1, 1],
        m=1,
        autocast=dtype,
        loss_scale=LossScale(initial, interval=2),
        clip_norm=0.1,
    )
    run = pipe.train(batches)
    optimizer = OPTIMIZERS["nesterov"](list(model.parameters()))
    scales = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = nn.functional.mse_loss(model(x), y)
        scaled = scaler.scale(loss)
        scales.append(scaler.get_scale())
        torch.autograd.backward(scaled)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    assert different(pipe.state_dict(), dict(model.state_dict())) == []
    assert list(run.loss_scales) == scales
    assert bool(run.skipped_updates) == (dtype == FP16 and initial > 2.0**20)


# --- What it means for a run ---------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_the_scale_is_carried_to_the_next_run(transport: str) -> None:
    """A pipeline without delay does not notice where a run ends."""
    batches = limited([100.0, math.inf, math.inf, 0.0, math.inf, math.inf, math.inf])
    how: dict[str, Any] = {"loss_scale": LossScale(2.0**16, interval=2)}
    pipe = pipeline(fragile(3), "flush", [3, 3], transport=transport, **how)
    runs = [pipe.train(batches[:3]), pipe.train(batches[3:])]
    truth = by_equations(fragile(3), batches, "flush", [3, 3], **how)
    assert [scale for run in runs for scale in run.loss_scales] == truth.loss_scales
    assert different(pipe.state_dict(), truth.weights[-1]) == []
    assert runs[1].skipped_updates == (1,)


def test_activations_travel_as_they_come() -> None:
    """After a linear layer bfloat16, half the bytes, and its gradient too; weights stay float32."""
    bytes_of = {}
    for dtype in (None, BF16):
        pipe = pipeline(mlp(6, 6, 6, 3), "flush", [1, 1, 1], autocast=dtype)
        run = pipe.train(data(2))
        bytes_of[dtype] = run.traffic.groupby("purpose")["bytes"].sum()
        assert run.trace.frame["bytes"].sum() == bytes_of[dtype].sum()
        assert {t.dtype for t in pipe.state_dict().values()} == {torch.float32}
    assert (2 * bytes_of[BF16] == bytes_of[None]).all()


def test_evaluation_computes_the_loss_as_training_does() -> None:
    torch.manual_seed(0)
    model, classes = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 50)), nn.CrossEntropyLoss()
    batches = [(x, torch.arange(8)) for x, _ in data(1)]
    pipe = pipeline(model, "gpipe", [1, 1], autocast=BF16, loss=classes, m=1)
    before = pipe.evaluate(batches)
    assert pipe.train(batches).losses == [before]
    outside = pipe.evaluate(batches, metric=lambda output, _: output.sum())
    assert outside != before


def test_autocast_around_a_call_is_refused_and_not_left_out() -> None:
    """Each thread and process has its own."""
    pipe = pipeline(mlp(6, 6, 3), "flush", [1, 1])
    with torch.autocast("cpu", torch.bfloat16):
        for call in (pipe.train, pipe.evaluate):
            with pytest.raises(ValueError, match=r"within torch.autocast.*autocast=torch.bfloat16"):
                call(data(1))
        within = pipeline(mlp(6, 6, 3), "flush", [1, 1], autocast=torch.bfloat16)
        found = within.train(data(1)).losses
    outside = pipeline(mlp(6, 6, 3), "flush", [1, 1], autocast=torch.bfloat16)
    assert found == outside.train(data(1)).losses
    with torch.autocast("cpu", enabled=False):
        assert len(pipe.train(data(1)).losses) == 1
