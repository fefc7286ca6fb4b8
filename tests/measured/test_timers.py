"""Megatron-LM's timers: what a log says of its iterations, as its three options print it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipekit.cli import app
from pipekit.measured.formats.megatron_timers import read

ARGUMENTS = """\
  pipeline_model_parallel_size .................... 4
  virtual_pipeline_model_parallel_size ............ None
INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to constant 8
(min, max) time across ranks (ms):
    model-and-optimizer-setup ......................: (1345.37, 1359.59)
"""
STEP = " [2026-07-10] iteration {}/ 20 | elapsed time per iteration (ms): {} | lm loss: 1.0E+00 |\n"
TIMERS = {
    "minmax": "(min, max) time across ranks (ms):\n"
    "    forward-compute ................................: (200.00, 250.00)\n"
    "    backward-compute ...............................: (400.00, 420.00)\n"
    "    optimizer ......................................: (30.00, 32.00)\n",
    "max": "max time across ranks (ms):\n"
    "    forward-compute ................................: 250.00\n"
    "    backward-compute ...............................: 420.00\n"
    "    optimizer ......................................: 32.00\n",
    "all": "times across ranks (ms):\n"
    "  forward-compute:\n     rank  0: 200.00\n     rank  1: 250.00\n"
    "  backward-compute:\n     rank  0: 420.00\n     rank  1: 400.00\n"
    "  optimizer:\n     rank  0: 30.00\n     rank  1: 32.00\n",
    "before core": "time (ms) | forward-compute: 250.00 | backward-compute: 420.00 "
    "| optimizer: 32.00\n",
}


def _log(folder: Path, option: str, iterations: int = 3) -> Path:
    steps = (STEP.format(n, 9000.0 if n == 1 else 1000.0) for n in range(1, iterations + 1))
    path = folder / "train.log"
    path.write_text(ARGUMENTS + "".join(step + TIMERS[option] for step in steps))
    return path


@pytest.mark.parametrize("option", TIMERS)
def test_each_option_gives_the_mean_iteration_behind_the_first(option: str, tmp_path: Path) -> None:
    found = read(_log(tmp_path, option))
    assert (found.iterations, found.step_s) == (2, 1.0)
    assert found.timers["most_s"].to_dict() == {
        "backward-compute": pytest.approx(0.42),
        "forward-compute": pytest.approx(0.25),
        "optimizer": pytest.approx(0.032),
    }
    assert found.timers["least_s"].isna().all() == (option in ("max", "before core"))
    assert found.counts == {"stages": 4, "microbatches": 8}


@pytest.mark.parametrize("option", TIMERS)
@pytest.mark.parametrize(
    ("before", "iteration"),
    [
        pytest.param(
            "\x1b[32m[default7]:", "elapsed time per iteration (ms): {}", id="torchrun, in colour"
        ),
        pytest.param("7: ", "elapsed time per iteration (s): {s}", id="srun, in seconds"),
        pytest.param("    [07:32][INFO] ", "elapsed_time_per_iteration_ms={}", id="DeepSpeed"),
    ],
)
def test_lines_begin_as_launchers_write_them(
    option: str, before: str, iteration: str, tmp_path: Path
) -> None:
    log = _log(tmp_path, option)
    text = log.read_text()
    for ms in ("9000.0", "1000.0"):
        written = iteration.format(ms, s=float(ms) / 1e3)
        text = text.replace(f"elapsed time per iteration (ms): {ms}", written)
    log.write_text("".join(f"{before}{line}\x1b[0m\n" for line in text.splitlines()))
    assert str(read(log)) == str(read(_log(tmp_path, option)))


def test_the_command_says_how_long_ranks_compute(tmp_path: Path) -> None:
    log = str(_log(tmp_path, "minmax"))
    said = CliRunner().invoke(app, ["explain", log]).stdout
    assert CliRunner().invoke(app, ["explain", log, log]).stdout == said + said
    assert "computes for at least 60% and at most 67% of an iteration" in said
    assert "forward-compute: the slowest rank takes 25% longer than the fastest, 50 ms" in said
    assert "optimizer: up to 3% of an iteration" in said
    assert "idle for 27% (exact" in said


@pytest.mark.parametrize("option", TIMERS)
def test_what_lies_between_iterations_is_no_part_of_one(option: str, tmp_path: Path) -> None:
    log = _log(tmp_path, option)
    said, between = str(read(log)), "max time across ranks (ms):\n    evaluate ....: 24895.13\n"
    log.write_text(log.read_text().replace(TIMERS[option], TIMERS[option] + between))
    assert str(read(log)) == said


def test_a_log_of_one_iteration_says_nothing_yet(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has timers of 1 iterations: log two or more"):
        read(_log(tmp_path, "minmax", iterations=1))
