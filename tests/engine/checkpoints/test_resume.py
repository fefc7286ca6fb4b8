"""A training that was interrupted goes on from its checkpoint as if nothing had been."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pipekit as pk
from pipekit import schedules
from pipekit.engine.checkpoints import files as checkpoints
from tests.engine.checkpoints.killing import Struck, differences, kill
from tests.engine.examples import (
    METHODS,
    MODELS,
    OPTIMIZERS,
    Trained,
    data,
    different,
    mixed,
    pipeline,
    trained,
    unlike,
)
from tests.engine.test_skips import model as model_with_skips
from tests.engine.updates.test_ties import TIES, tied

StepLR = torch.optim.lr_scheduler.StepLR
MSE = nn.MSELoss()


class Interruption(Exception):
    pass


class Interrupting:
    """A loss that raises when it is computed for the n-th time in training."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.left -= 1
            if self.left < 0:
                raise Interruption
        return nn.functional.mse_loss(output, target)


def end(folder: Path) -> Path:
    home = checkpoints.newest(folder)
    assert home is not None
    return home


def saved_after(folder: Path) -> int:
    """How many batches the newest checkpoint, if there is one, has been trained on."""
    home = checkpoints.newest(folder)
    return int(home.name.split("-")[1]) if home else 0


def taken_up(
    build: Callable[..., pk.Pipeline],
    folder: Path,
    batches: Any,
    at: int,
    every: int,
    anew: Callable[[], pk.Pipeline] | None = None,
) -> tuple[pk.Pipeline, list[float], int]:
    """Interrupt a training at a loss, and take it up in a pipeline that is built anew.

    Returns this one, its losses, and the batches before the checkpoint.
    """
    saves = pk.Checkpoints(folder, every=every)
    with pytest.raises(Interruption):
        build(loss=Interrupting(at)).train(batches, checkpoints=saves)
    done, again = saved_after(folder), (anew or build)()
    assert again.resume(folder) == 0
    return again, again.train(batches, checkpoints=saves).losses, done


def parallel(method: str, replicas: int) -> schedules.Schedule:
    """A method on 2 stages, or 1, each on several workers."""
    return {
        "2 x interleaved": schedules.replicate(schedules.interleaved(2, 2, workers=1), replicas),
        "2 x 2bw": schedules.replicate(schedules.two_bw(2, 2), replicas),
        "pipedream 2-1": schedules.pipedream([replicas, 1]),
        "asp": schedules.asp(replicas),
        "bsp": schedules.pipedream([replicas]),
    }[method]


# --- To the bit ----------------------------------------------------------------------------------

STRAIGHT = st.fixed_dictionaries(
    {
        "method": st.sampled_from(list(METHODS)),
        "model": st.sampled_from([*MODELS.values(), model_with_skips]),
        "recompute": st.sampled_from(["never", "always"]),
        "clip_norm": st.sampled_from([None, 0.1]),
        # So large that the first updates are skipped, and soon grown again.
        "loss_scale": st.sampled_from([None, pk.LossScale(initial=2.0**126, interval=1)]),
    }
)


@pytest.mark.long
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(STRAIGHT, st.integers(1, 4), st.integers(1, 24), st.randoms(use_true_random=False))
def test_any_method_any_model_interrupted_anywhere(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any], every: int, at: int, draw: Any
) -> None:
    """Weights, stashed versions, statistics, optimizer, scheduler, scales, losses: everything."""
    options = dict(chosen)
    model, method = options.pop("model"), options.pop("method")
    if method == "no_stashing":
        options["recompute"] = "never"
    balance = draw.choice([[2, 3, 3], [4, 4], [1, 1, 6], [8]])

    def build(loss: Any = MSE) -> pk.Pipeline:
        scheduler = partial(StepLR, step_size=2, gamma=0.5)
        return pipeline(model(), method, balance, loss=loss, lr_scheduler=scheduler, **options)

    folder, batches = tmp_path_factory.mktemp("resume"), data(6)
    whole = build().train(batches, checkpoints=pk.Checkpoints(folder / "whole", every=every))
    passes = len(whole.schedule.batches[0]) * len(batches)
    _, losses, _ = taken_up(build, folder / "mine", batches, at % passes, every)
    assert losses == whole.losses
    assert differences(end(folder / "whole"), end(folder / "mine")) == []


@pytest.mark.parametrize("method", ["2 x interleaved", "2 x 2bw", "pipedream 2-1", "asp", "bsp"])
def test_replicas_go_on_each_with_its_own_statistics(method: str, tmp_path: Path) -> None:
    one_stage = method in ("asp", "bsp")

    def build(loss: Any = MSE) -> pk.Pipeline:
        return pk.Pipeline(
            pk.convert_batch_norm(mixed()),  # type: ignore[arg-type]  # it stays a Sequential
            parallel(method, 2),
            balance=[8] if one_stage else [4, 4],
            optimizer=partial(torch.optim.Adam, lr=0.01),
            loss=loss,
        )

    batches = data(9)
    whole = build().train(batches, checkpoints=pk.Checkpoints(tmp_path / "whole", every=2))
    at = 13 if method.startswith("2 x") else 7
    _, losses, _ = taken_up(build, tmp_path / "mine", batches, at, every=2)
    assert losses == whole.losses
    assert differences(end(tmp_path / "whole"), end(tmp_path / "mine")) == []


def test_backwards_that_mix_updates_sum_as_they_did(tmp_path: Path) -> None:
    """A gradient set aside before the boundary is set aside when it is computed again."""
    F, B, U = pk.schedules.Op.FORWARD, pk.schedules.Op.BACKWARD, pk.schedules.Op.UPDATE
    order = [(F, k) for k in range(6)] + [(B, k) for k in (3, 0, 4, 5, 1, 2)]
    tasks = [pk.schedules.Task(op, 0, k, 0) for op, k in order]
    tasks += [pk.schedules.Task(U, 0, 2, 1), pk.schedules.Task(U, 0, 5, 2)]
    schedule = pk.Schedule((tuple(tasks),), batch_size=3)

    def build() -> pk.Pipeline:
        return pipeline(mixed(), schedule, [8])

    batches = data(2, rows=9)
    assert unlike(*without_its_last_checkpoint(build, batches, tmp_path)) == []


def without_its_last_checkpoint(
    build: Callable[[], pk.Pipeline], batches: Any, folder: Path
) -> tuple[Trained, Trained]:
    """Return a training that went on from the checkpoint before, and the one that wrote both."""
    saves = pk.Checkpoints(folder, every=1)
    whole = trained(build(), batches, checkpoints=saves)
    for part in checkpoints.parts_of(end(folder)):
        part.path.unlink()
    again = build()
    again.resume(folder)
    return trained(again, batches, checkpoints=saves), whole


def test_a_stages_statistics_wait_for_its_own_forwards(tmp_path: Path) -> None:
    """Those of a worker's other stage are a batch ahead."""
    F, B, U = pk.schedules.Op.FORWARD, pk.schedules.Op.BACKWARD, pk.schedules.Op.UPDATE
    order = [(F, 0, 0, 0), (F, 0, 1, 0), (F, 1, 0, 0), (B, 1, 0, 0), (U, 1, 0, 1), (B, 0, 0, 0)]
    order += [(U, 0, 0, 1), (F, 1, 1, 1), (B, 1, 1, 1), (U, 1, 1, 2), (B, 0, 1, 0), (U, 0, 1, 2)]
    schedule = pk.Schedule((tuple(pk.schedules.Task(*each) for each in order),))

    def build() -> pk.Pipeline:
        layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        return pipeline(layers, schedule, [1, 2])

    assert unlike(*without_its_last_checkpoint(build, data(2), tmp_path)) == []


# --- Data, and several runs ----------------------------------------------------------------------


def shuffled(**how: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    inputs, targets = (torch.randn(40, n, generator=generator) for n in (6, 3))
    return DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True, **how)


@pytest.mark.parametrize("at", [5, 14])
@pytest.mark.parametrize("reads", ["a loader", "a generator", "a loader with its own"])
def test_the_order_of_the_data_is_the_same(at: int, reads: str, tmp_path: Path) -> None:
    """Over three epochs whose order a generator draws, with a test after each."""

    def epochs(folder: Path, loss: Any = MSE) -> list[float]:
        pipe = pipeline(mixed(), "pipedream", [3, 5], loss=loss)
        torch.manual_seed(3 if not folder.exists() else 4)
        values, own = [], shuffled(generator=torch.Generator().manual_seed(5))
        for _ in range(pipe.resume(folder), 3):
            kinds: dict[str, Any] = {"a loader": shuffled(), "a generator": (b for b in shuffled())}
            batches = kinds.get(reads, own)
            values += pipe.train(batches, checkpoints=pk.Checkpoints(folder, every=2)).losses
            values.append(pipe.evaluate(shuffled()))
        return [*values, torch.rand(()).item()]

    expected = epochs(tmp_path / "whole")
    with pytest.raises(Interruption):
        epochs(tmp_path / "mine", Interrupting(at))
    found = epochs(tmp_path / "mine")
    assert found == expected[-len(found) :]
    assert differences(end(tmp_path / "whole"), end(tmp_path / "mine")) == []


def test_a_run_that_was_at_its_end_is_not_trained_again(tmp_path: Path) -> None:
    batches = data(4)
    first = pipeline(mixed(), "2bw", [3, 5], loss_scale="dynamic")
    runs = [first.train(batches, checkpoints=tmp_path) for _ in range(2)]
    again = pipeline(mixed(), "2bw", [3, 5], loss_scale="dynamic")
    assert again.resume(tmp_path) == 1
    run = again.train(batches, checkpoints=tmp_path)
    assert run.losses == runs[1].losses
    assert run.loss_scales == runs[1].loss_scales
    assert run.trace.frame.empty
    assert different(again.state_dict(), first.state_dict()) == []
    assert again.train(batches).losses == first.train(batches).losses


def test_the_rest_of_a_run_alone_is_warned_of(tmp_path: Path) -> None:
    pipe = pipeline(mixed(), "2bw", [3, 5], loss=Interrupting(18))
    with pytest.raises(Interruption):
        pipe.train(data(6), checkpoints=pk.Checkpoints(tmp_path, every=1))
    pipe.resume(tmp_path)
    with pytest.warns(UserWarning, match="nothing is trained: .* pass all batches of that run"):
        pipe.train(data(saved_after(tmp_path)))


def test_losses_may_be_scaled_from_a_checkpoint_on(tmp_path: Path) -> None:
    build = partial(pipeline, mixed(), "2bw", [3, 5])
    again = partial(build, loss_scale=2.0)
    pipe, losses, _ = taken_up(build, tmp_path, data(6), 18, 1, again)
    whole = build()
    assert losses == whole.train(data(6)).losses
    assert different(pipe.state_dict(), whole.state_dict()) == []


def test_the_same_pipeline_goes_on_after_an_error(tmp_path: Path) -> None:
    whole = trained(pipeline(mixed(), "2bw", [3, 5]), data(6))
    pipe = pipeline(mixed(), "2bw", [3, 5], loss=(loss := Interrupting(18)))
    with pytest.raises(Interruption):
        pipe.train(data(6), checkpoints=pk.Checkpoints(tmp_path, every=2))
    loss.left = 1000
    pipe.resume(tmp_path)
    assert unlike(trained(pipe, data(6), checkpoints=tmp_path), whole) == []


# --- With other stages, or another method --------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "balance"), [("gpipe", [1, 2, 5]), ("flush", [8]), ("flush", "auto")]
)
def test_a_method_that_flushes_is_exact_also_on_other_stages(
    method: str, balance: Any, tmp_path: Path
) -> None:
    def build(balance: Any, method: str, loss: Any = MSE) -> pk.Pipeline:
        options = {"lr_scheduler": partial(StepLR, step_size=2, gamma=0.5), "stages": 2}
        if balance != "auto":
            options["stages"] = len(balance)
        return pipeline(mixed(), method, balance, loss=loss, **options)

    before, after = partial(build, [2, 6], "flush"), partial(build, balance, method)
    whole = before()
    losses = whole.train(data(7)).losses
    again, resumed, done = taken_up(before, tmp_path, data(7), 22, 2, after)
    assert done >= 2
    same_table = method == "flush" and balance == "auto"  # which takes the saved borders
    assert resumed == losses[0 if same_table else done :]
    assert different(again.state_dict(), whole.state_dict()) == []


@pytest.mark.parametrize(("before", "after"), [([6], [3, 3]), ([3, 3], [2, 4])], ids=str)
def test_shared_weights_go_on_in_other_stages(
    before: list[int], after: list[int], tmp_path: Path
) -> None:
    """A new copy has the optimizer's state of the shared one; in other parts, sums round otherwise."""

    def build(balance: list[int], loss: Any = MSE) -> pk.Pipeline:
        return pipeline(tied(*TIES), "flush", balance, loss=loss, optimizer=OPTIMIZERS["adam"])

    whole = build(before)
    losses = whole.train(data(5)).losses
    ways = partial(build, before), partial(build, after)
    again, resumed, done = taken_up(ways[0], tmp_path, data(5), 18, 1, ways[1])
    assert resumed == pytest.approx(losses[done:], rel=1e-5)
    torch.testing.assert_close(dict(again.state_dict()), dict(whole.state_dict()))


def test_pipedream_on_other_stages_begins_with_the_newest_weights(tmp_path: Path) -> None:
    first = pipeline(mixed(), "pipedream", [2, 6])
    first.train(data(4), checkpoints=tmp_path)
    again = pipeline(mixed(), "pipedream", [2, 3, 3])
    again.resume(tmp_path)
    assert again.train(data(4)).losses == []
    assert different(again.state_dict(), first.state_dict()) == []
    assert len(again.train(data(3)).losses) == 3


# --- Killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "worker", "then"), [("pipedream", 1, "distributed"), ("2bw", 0, "threads")]
)
def test_kill_9(method: str, worker: int, then: str, tmp_path: Path) -> None:
    batches = data(60)
    whole = pipeline(mixed(), method, [3, 5])
    losses = whole.train(batches, checkpoints=pk.Checkpoints(tmp_path / "whole", every=3)).losses
    folder = tmp_path / "mine"
    with pytest.raises(pk.WorkerDied, match=f"worker {worker}.*killed") as caught:
        pipeline(mixed(), method, [3, 5], transport="distributed").train(
            Struck(batches, 40, partial(kill, worker)), checkpoints=pk.Checkpoints(folder, every=3)
        )
    assert f"resume({str(folder)!r}) before train()" in caught.value.__notes__[-1]
    assert 0 < saved_after(folder) < 60
    again = pipeline(mixed(), method, [3, 5], transport=then)
    again.resume(folder)
    assert again.train(batches, checkpoints=pk.Checkpoints(folder, every=3)).losses == losses
    assert differences(end(tmp_path / "whole"), end(folder)) == []


def test_a_restart_goes_on_from_the_last_epoch_that_all_stages_have_written(tmp_path: Path) -> None:
    """PipeDream, section 4: also from the one before, if a stage's newest file is lost."""
    epochs = [data(4), data(4), data(40)]

    def train(folder: Path, transport: str = "threads", strikes: bool = False) -> None:
        pipe = pipeline(mixed(), "pipedream", [3, 5], transport=transport)
        for number in range(pipe.resume(folder), len(epochs)):
            strikes_now = strikes and number + 1 == len(epochs)
            batches = (
                Struck(epochs[number], 20, partial(kill, 1)) if strikes_now else epochs[number]
            )
            pipe.train(batches, checkpoints=folder)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole)
    with pytest.raises(pk.WorkerDied):
        train(killed, "distributed", strikes=True)
    assert saved_after(killed) == 8
    newest = checkpoints.parts_of(end(killed))[0].path
    hidden = newest.rename(tmp_path / newest.name)
    assert saved_after(killed) == 4
    hidden.rename(newest)
    train(killed)
    assert differences(end(whole), end(killed)) == []
