"""A schedule taken along: run by torch.distributed.pipelining's own runtime, as torchtitan does."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pipekit.partition.checks import require_balance
from pipekit.partition.partition import cut
from pipekit.schedules import Schedule, ScheduleError


def torch_runtime(
    schedule: Schedule,
    layers: nn.Sequential,
    balance: Sequence[int],
    loss: Callable[[Tensor, Tensor], Tensor],
    device: torch.device | str = "cpu",
) -> _PipelineScheduleRuntime:
    """Return torch's runtime for one batch of a schedule, for the rank that calls this.

    Call it on every rank, one for each worker, once a process group is there::

        torch.distributed.init_process_group("gloo")  # under torchrun; "nccl" between GPUs
        runtime = pipekit.torch_runtime(schedules.zb_v(4, 8), model, [2, 2, 2, 2], loss)
        runtime.step(x, target=y)  # x on the rank of the first stage, y on the last stage's
        optimizer.step()

    The model's own parameters then have the gradients of the batch's mean loss.  To do without
    pipekit, keep the file that ``schedule.to_torch_csv("schedule.csv")`` writes; the rest is what
    stands below.  torch 2.11 cannot run V-shaped tables over gloo: a worker sends to itself.

    Args:
        schedule: of one batch; see :meth:`Schedule.to_torch_csv`.
        layers: the whole model.
        balance: how many layers each stage has.
        loss: of a microbatch's output and target, a mean over rows; microbatches have equally many.
        device: of this rank.

    Raises:
        ScheduleError: torch has no such tables, or there are more or fewer ranks than workers.
        ValueError: the balance does not fit the model.
    """
    require_balance(balance, layers, schedule.stages)
    table, ranks = schedule.to_torch_csv(), dist.get_world_size()
    if ranks != schedule.worker_count:
        raise ScheduleError(
            f"the schedule has {schedule.worker_count} workers and the process group {ranks} "
            f"ranks: start one process for each worker"
        )
    device, parts = torch.device(device), cut(layers, balance)
    stages = [
        PipelineStage(parts[stage].to(device), stage, schedule.stages, device)
        for stage, (rank,) in enumerate(schedule.stage_workers)
        if rank == dist.get_rank()
    ]
    runtime = _PipelineScheduleRuntime(stages, schedule.excerpt(1).microbatches, loss_fn=loss)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "schedule.csv")
        file.write_text(table, encoding="utf-8", newline="")
        runtime._load_csv(str(file))
    return runtime
