"""Trainings of torch.distributed.pipelining under torch.profiler: one process a rank, on gloo."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

from pipekit.measured import label_actions

WIDTH, MICROBATCHES, STEPS = 256, 8, 3
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def train(folder: Path, names: list[str]) -> None:
    """Train some steps by each schedule, and write the rank's trace into a folder of its name."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        _train(name, folder / name)
    dist.destroy_process_group()


def _train(name: str, folder: Path) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    kind = schedules.get_schedule_class(name)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    second = 2 * ranks - 1 - rank if name in V_SHAPED else rank + ranks
    mine, total = ([rank, second], 2 * ranks) if several else ([rank], ranks)
    stages = []
    for number in mine:
        layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
        stages.append(PipelineStage(layers, number, total, torch.device("cpu")))
    schedule = kind(
        stages if several else stages[0], MICROBATCHES, loss_fn=torch.nn.functional.mse_loss
    )
    label_actions(*stages)
    x, y = torch.randn(2, MICROBATCHES * 64, WIDTH)
    inputs = [x] if 0 in mine else []
    targets = {"target": y} if total - 1 in mine else {}
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            schedule.step(*inputs, **targets)
            profiler.step()
    folder.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
