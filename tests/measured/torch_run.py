"""A training of torch.distributed.pipelining under torch.profiler: one process a rank, on gloo.

torchrun --nproc-per-node 2 tests/measured/torch_run.py 1F1B FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

from pipekit.measured import label_actions

WIDTH, MICROBATCHES, STEPS = 256, 8, 3


def main(name: str, folder: str) -> None:
    """Train some steps, and write the rank's trace."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    kind = schedules.get_schedule_class(name)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    mine = (
        [rank, 2 * ranks - 1 - rank]
        if "ZBV" in name or "DualPipeV" in name
        else [rank, rank + ranks]
    )
    mine, total = (mine, 2 * ranks) if several else ([rank], ranks)
    stages = []
    for number in mine:
        layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
        stages.append(PipelineStage(layers, number, total, torch.device("cpu")))
    schedule = kind(
        stages if several else stages[0], MICROBATCHES, loss_fn=torch.nn.functional.mse_loss
    )
    label_actions(*stages)
    x, y = torch.randn(2, MICROBATCHES * 64, WIDTH)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            schedule.step(
                *([x] if 0 in mine else []), **({"target": y} if total - 1 in mine else {})
            )
            profiler.step()
    profiler.export_chrome_trace(str(Path(folder) / f"rank{rank}.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
