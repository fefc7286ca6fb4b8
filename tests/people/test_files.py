"""Files that people bring or that a crash left, and numbers at the edges: right, or one sentence."""

import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import pipekit as pk
from pipekit import schedules
from pipekit.cli import app
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, ScheduleError, check, parse, read_csv
from tests.engine.examples import different
from tests.people.plain import CE, batches, network, pipe, plain_loop

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def net(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return network(nn.Tanh()).to(dtype)


def data(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(x.to(dtype), y) for x, y in batches(4)]


def pipeline(dtype: torch.dtype) -> pk.Pipeline:
    return pipe(net(dtype), optimizer=SGD)


def interrupted(folder: Path, dtype: torch.dtype) -> None:
    def broken() -> Iterator[tuple[Tensor, Tensor]]:
        yield from data(dtype)[:2]
        raise KeyError("the disk is gone")

    with pytest.raises(KeyError):
        pipeline(dtype).train(broken(), steps=4, checkpoints=pk.Checkpoints(folder, every=1))


# --- Checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_checkpoint_goes_on_as_the_plain_loop_does(tmp_path: Path, dtype: torch.dtype) -> None:
    interrupted(tmp_path, dtype)
    again = pipeline(dtype)
    again.resume(tmp_path)
    losses = again.train(data(dtype), checkpoints=tmp_path).losses
    plain = plain_loop(net(dtype), SGD, CE, data(dtype), microbatches=4)
    assert losses == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize(
    ("saved", "here"),
    [(torch.float32, torch.float64), (torch.float32, torch.bfloat16)],
)
def test_a_checkpoint_of_another_precision_is_refused(
    tmp_path: Path, saved: torch.dtype, here: torch.dtype
) -> None:
    interrupted(tmp_path, saved)
    made = pipeline(here)
    with pytest.raises(ValueError, match=rf"in {saved}, and this model in {here}: build the model"):
        made.resume(tmp_path)
    assert different(made.state_dict(), net(here).state_dict()) == []


# --- Tables --------------------------------------------------------------------------------------


def said(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in found]


def test_a_table_with_sharding_is_read_and_its_costs_are_asked_for() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n1F0,1B0\n"
    table = Schedule.from_torch_csv(text)
    assert [task.label for task in table.workers[0]] == ["G0", "F0", "B0", "D0", "S0", "U1"]
    with pytest.raises(ValueError, match=r"no seconds in the profile: give .*shards=Shards"):
        pk.simulate(table, pk.Profile.uniform(2))


def test_taking_naive_pipelining_to_torch_says_that_stashing_is_lost() -> None:
    (message,) = said(schedules.pipedream(2, stashing=False).take(1).to_torch_csv)
    assert "no place for stashing=False" in message


TASK = "worker,op,stage,microbatch,version\n0,FORWARD,0,0,0\n"


def test_a_csv_that_says_many_workers_is_refused_at_once() -> None:
    begin = time.process_time()
    with pytest.raises(ScheduleError, match=r"999,999 workers and 1 tasks: leave out workers"):
        check(read_csv(f"# x; 999999 workers; stashing on\n{TASK}"))
    assert time.process_time() - begin < 10


def test_a_few_idle_workers_are_nobodys_business() -> None:
    table = read_csv(f"# x; 50 workers; stashing on\n{TASK}")
    assert len(check(table).peak_in_flight) == 50
    assert str(table).count("worker") == 50


def test_a_picture_that_nobody_can_read_is_not_drawn() -> None:
    table = parse("\n".join(f"worker {w} | F0" for w in range(4000)))
    with pytest.raises(ScheduleError, match=r"4,000 workers and 4,000 slots.*to_csv"):
        str(table)


ESCAPE = "\x1b]0;you are mine\x07\x1b[31m"


@pytest.mark.parametrize("read", [parse, read_csv])
def test_a_title_cannot_write_to_the_terminal(read: Callable[[str], Schedule]) -> None:
    picture = f"# {ESCAPE}mine\nworker 0 | F0 B0^"
    text = picture if read is parse else f"# {ESCAPE}mine; 1 workers; stashing on\n{TASK}"
    shown = str(read(text)) + repr(read(text))
    assert "\x1b" not in shown
    assert "\\x1b]0;you are mine\\x07\\x1b[31mmine" in shown


def test_a_title_keeps_its_letters() -> None:
    title = "Größe × 2 — 早い [bold]"
    assert str(parse(f"# {title}\nworker 0 | F0 B0^")).startswith(f"# {title}")


def cli(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(a) for a in arguments]).output


def test_a_plan_from_a_stranger_prints_none(tmp_path: Path) -> None:
    plan = pk.Plan.by_hand([2, 2])
    plan.save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text()) | {"method": ESCAPE, "why": ESCAPE}
    (tmp_path / "plan.json").write_text(json.dumps(record))
    read = pk.Plan.load(tmp_path / "plan.json")
    assert read.method == ESCAPE
    assert "\x1b" not in str(read)


# --- Profiles, clusters and the shell's numbers --------------------------------------------------


def saved(path: Path, **costs: float) -> Path:
    layer = replace(LayerProfile("a", 1.0, 2.0), **costs)  # type: ignore[arg-type]
    Profile((layer,) * 4, provenance={"label": "measured"}).save(path)
    return path


@pytest.mark.parametrize(("name", "value"), [("forward_s", 1e308), ("parameter_bytes", -1.0)])
def test_costs_that_no_sum_can_hold_are_refused_in_a_profile(
    tmp_path: Path, name: str, value: float
) -> None:
    path = saved(tmp_path / "p.json")
    record = json.loads(path.read_text())
    record["layers"][2][name] = value
    path.write_text(json.dumps(record))
    output = " ".join(cli("plan", path, "--workers", 2, "--bandwidth", 1e9).split())
    assert f"{name} must be 0 or a positive number up to 1e+100" in output
    assert "p.json" in output


@pytest.mark.parametrize("value", [0.0, 1e50])
def test_odd_costs_are_planned_with_finite_numbers(tmp_path: Path, value: float) -> None:
    path = saved(tmp_path / "p.json", forward_s=value, backward_s=value)
    output = cli("plan", path, "--workers", 2, "--bandwidth", 1e9)
    assert "simulated" in output
    assert "inf" not in output
    assert "nan" not in output


def test_a_profile_of_no_time_is_simulated(tmp_path: Path) -> None:
    path = saved(tmp_path / "p.json", forward_s=0.0, backward_s=0.0)
    output = cli("simulate", "flush", path, "--stages", 4, "--microbatches", 4)
    assert "0 s" in output
    assert "Error" not in output


# --- Simulation ----------------------------------------------------------------------------------


def test_a_stage_without_weights_waits_for_nobody_as_in_the_engine() -> None:
    layers = (LayerProfile("pool", 1, 2), LayerProfile("linear", 1, 2, parameter_bytes=8.0))
    frame = pk.simulate(schedules.pipedream([2, 1]).take(2), Profile(layers)).frame
    first = frame[(frame["stage"] == 0) & (frame["op"] == "UPDATE")]["start_s"].tolist()
    assert len(set(first)) == 2, "one worker's backward ends before the other's"
