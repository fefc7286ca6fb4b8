"""Updates that are validated later: equal to the bit to those that wait, right or wrong.

The judge is the oracle, which knows no schedules and clips before it steps.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipekit import (
    Checkpoints,
    LossScale,
    Pipeline,
    Run,
    Schedule,
    Watch,
    emulate,
    measure_memory,
    simulate,
)
from pipekit.devices import CPU
from pipekit.engine import Execution, Updates
from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.combinations import conflict, of_pipeline
from pipekit.engine.options import VALIDATE
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, ScheduleError, replicate, zb_h1, zb_h2, zb_v
from pipekit.schedules.methods.flushed import flushed
from tests.emulation.own_time import own_time
from tests.engine.examples import OPTIMIZERS, data, different, mixed, mlp, pipeline, values
from tests.engine.methods.test_methods import BATCHES, NAMES, SEVERAL, both, made, network
from tests.engine.test_skips import model as model_with_skips
from tests.engine.updates.test_ties import tied
from tests.schedules.examples import LATE_UPDATE
from tests.schedules.methods.test_all_methods import METHODS

OVERFLOW = LossScale(2.0**24, backoff=2.0**-16, interval=1)
"""The first update overflows in float16, and no other."""


def again(run: Run) -> list[int]:
    """The versions that forwards have read again, since they were wrong at first."""
    frame = run.trace.frame
    return sorted(frame.loc[frame["op"] == "RECOMPUTE", "version"].unique())


def later(schedule: Schedule, transport: str = "threads", **options: Any) -> Run:
    """Train a layer a stage, compare with the equation, and return the run."""
    balance = [1] * schedule.stages
    options["validate"] = "later"
    return both(schedule, network(schedule.stages), balance, transport, **options)


@pytest.mark.parametrize("name", NAMES)
def test_every_update_is_wrong(name: str) -> None:
    assert again(later(made(name), clip_norm=0.1)) == [*range(1, BATCHES)]


@pytest.mark.parametrize("transport", ["threads", "distributed"])
@pytest.mark.parametrize("name", ["zb_h2", "zb_v", "dualpipe"])
def test_one_update_is_wrong(name: str, transport: str) -> None:
    """The second batch's gradient is a thousand times as large as the first's."""
    options: dict[str, Any] = {"optimizer": OPTIMIZERS["adam"], "clip_norm": 50.0}
    run = later(made(name), transport, scales=(1.0, 1e3, 1.0), **options)
    assert again(run) == [2]


@pytest.mark.parametrize("name", SEVERAL)
def test_an_update_is_skipped_after_all(name: str) -> None:
    run = later(made(name), autocast=torch.float16, loss_scale=OVERFLOW)
    assert run.skipped_updates == (1,)
    assert again(run) == [1]


@pytest.mark.parametrize("name", SEVERAL)
def test_parallel_pipelines(name: str) -> None:
    schedule = replicate(METHODS[name](1, 2), 2)
    later(schedule, clip_norm=0.1)


@pytest.mark.parametrize("name", ["zb_h2", "zb_v", "chimera", "dualpipe_v"])
def test_stages_that_share_weights(name: str) -> None:
    schedule = METHODS[name](2, 3)
    model = tied(("0.weight", "4.weight"))
    balance = [3, len(model) - 3] if schedule.stages == 2 else [1, 2, 1, len(model) - 4]
    both(schedule, model, balance, "threads", clip_norm=0.1, validate="later")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_put_back(optimizer: str) -> None:
    """With a scheduler, which has stepped too; some write into the gradients that they are given."""
    step = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    later(zb_h2(2, 3), optimizer=OPTIMIZERS[optimizer], clip_norm=0.1, lr_scheduler=step)


def waiting_and_later(model: nn.Sequential, **options: Any) -> list[Run]:
    """Train both ways and compare; return both runs."""
    runs, states = [], []
    for validate in VALIDATE:
        pipe = pipeline(model, balance=[2, 3, 3], clip_norm=0.1, validate=validate, **options)
        runs.append(pipe.train(data(7), watch=Watch(memory=True)))
        states.append(dict(pipe.state_dict()))
    assert runs[0].losses == runs[1].losses
    assert different(*states) == []
    return runs


def test_running_statistics_count_each_microbatch_once() -> None:
    first, second = waiting_and_later(mixed())
    assert again(second)
    assert not again(first)


@pytest.mark.parametrize("method", ["pipedream", "no_stashing", "vertical_sync", "2bw"])
def test_without_a_flush_a_forward_may_depend_on_an_earlier_update_s_forward(method: str) -> None:
    """It is then run again with what was sent again before, and kept."""
    assert again(waiting_and_later(mixed(), method=method)[1])


def test_skip_connections_are_sent_again() -> None:
    assert again(waiting_and_later(model_with_skips())[1])


def test_what_was_sent_again_is_in_the_traffic() -> None:
    first, second = (
        run.traffic.groupby("purpose")["bytes"].sum()
        for run in waiting_and_later(mlp(6, 6, 6, 6, 6, 6, 6, 6, 3))
    )
    assert second["gradient"] == first["gradient"]
    assert second["activation"] > first["activation"]


def test_the_copies_that_it_takes_are_in_the_measured_memory() -> None:
    """Weights, momentum and gradients of a worker once more, between update and validation."""
    runs = waiting_and_later(mlp(6, 6, 6, 6, 6, 6, 6, 6, 3))
    first, later = (measure_memory(run).frame.groupby("worker") for run in runs)
    more = later["gradients"].max() - first["gradients"].max()
    assert (more >= 2 * first["weights"].max()).all()


@pytest.mark.parametrize("name", ["flush", "2bw"])
def test_a_checkpoint_holds_what_has_been_validated(name: str, tmp_path: Path) -> None:
    contents = []
    for validate in VALIDATE:
        pipe = pipeline(mixed(), name, [3, 2, 3], clip_norm=0.1, validate=validate)
        folder = tmp_path / validate
        pipe.train(data(4), checkpoints=Checkpoints(folder, every=1, keep=9))
        homes = sorted(folder.glob("batch-*"))
        contents.append([checkpoints.load(p) for h in homes for p in checkpoints.parts_of(h)])
    assert len(contents[0]) >= 2 * 3
    for waited, validated in zip(*contents, strict=True):
        for key in ("boundary", "parameters", "older", "buffers", "state", "scales", "losses"):
            torch.testing.assert_close(waited[key], validated[key], rtol=0, atol=0)


def test_a_stage_may_update_after_the_validation() -> None:
    states = []
    for validate in VALIDATE:
        how: dict[str, Any] = {"optimizer": OPTIMIZERS["adam"], "loss": nn.MSELoss()}
        pipe = Pipeline(
            network(2),
            LATE_UPDATE,
            balance=[1, 1],
            **values(clip_norm=0.1, validate=validate, **how),
        )
        assert len(again(pipe.train(data(2)))) == (validate == "later")
        states.append(dict(pipe.state_dict()))
    assert different(*states) == []


def test_over_nccl_it_is_refused() -> None:
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    updates = {each: Updates(validate=each, clip_norm=1.0) for each in VALIDATE}

    def refused(validate: str, transport: str, devices: list[torch.device]) -> object:
        how: dict[str, Any] = {"seed": 0, "transport": transport, "devices": devices}
        used = of_pipeline(zb_h1(2, 2), updates[validate], Execution(), **how)
        return conflict(used)

    assert not refused("later", "threads", gpus)
    assert not refused("first", "distributed", gpus)
    assert not refused("later", "distributed", [CPU])
    assert "use transport='threads' between GPUs" in str(refused("later", "distributed", gpus))


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="validate must be one of first, later, not 'never'"):
        pipeline(mlp(6, 3), balance=[1], validate="never")


F, B = Op.FORWARD, Op.BACKWARD
STUCK = flushed(
    "stuck",
    [
        [(F, 0, 0), (F, 0, 1), (F, 2, 0), (F, 0, 2), (F, 2, 2), (F, 2, 1)]
        + [(B, stage, k) for stage in (2, 0) for k in range(3)],
        [(F, 1, 0), (F, 1, 1), (F, 3, 0), (F, 1, 2), (F, 3, 2), (F, 3, 1)]
        + [(B, stage, k) for stage in (3, 1) for k in range(3)],
    ],
)


def test_a_table_that_could_not_go_back_is_refused() -> None:
    """Before it goes back, worker 0 wants F2 of stage 1, to which worker 1 comes after that."""
    how: dict[str, Any] = {"clip_norm": 0.1, "optimizer": OPTIMIZERS["sgd"], "loss": nn.MSELoss()}
    pipe = Pipeline(network(4), STUCK, balance=[1] * 4, **values(validate="later", **how))
    with pytest.raises(ScheduleError, match="had to be made again, worker 0 would wait for ever"):
        pipe.train(data(2))
    Pipeline(network(4), STUCK, balance=[1] * 4, **values(**how)).train(data(2))


LAYER = LayerProfile("layer", 4e-3, 8e-3, backward_input_s=4e-3, backward_weight_s=4e-3)


@pytest.mark.parametrize("make", [zb_h2, zb_v])
def test_without_a_global_stop_no_worker_idles_between_batches(make: Any) -> None:
    """What ZB-H2 and ZB-V gain is there if updates wait for nobody, or are validated later."""
    schedule = make(4, 8).take(4)
    costs = Profile((LAYER,) * 4, input_bytes=4)
    steady = {
        validate: simulate(schedule, costs, validate=validate).bubbles().loc["all", "steady"]
        for validate in (None, "first", "later")
    }
    assert steady[None] == steady["later"] == pytest.approx(0)
    assert steady["first"] > 0.02


def test_with_a_global_stop_zb_h2_takes_as_long_as_zb_h1() -> None:
    costs = Profile((LAYER,) * 4, input_bytes=4)
    seconds = {
        (make, validate): simulate(make(4, 8).take(4), costs, validate=validate).makespan_s
        for make in (zb_h1, zb_h2)
        for validate in ("first", "later")
    }
    assert seconds[zb_h2, "first"] == pytest.approx(seconds[zb_h1, "first"])
    assert seconds[zb_h2, "later"] == pytest.approx(4 * 8 * 12e-3 + 3 * 4e-3)
    assert seconds[zb_h2, "later"] < seconds[zb_h1, "later"]


def test_emulated_it_waits_where_it_is_simulated_to_wait() -> None:
    costs = Profile((LAYER,) * 4, input_bytes=4)
    schedule = zb_h2(4, 7).take(3)
    for validate in VALIDATE:
        with own_time():
            seconds = emulate(schedule, costs, validate=validate).trace.makespan_s
        assert seconds == pytest.approx(simulate(schedule, costs, validate=validate).makespan_s)
