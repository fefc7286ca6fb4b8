"""One worker of trainings whose layers sleep, and whose messages are real.

shared_links.py starts it once a worker, with the environment that torchrun gives.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from experiments.benchmarks.shared_links import Case
from pipekit import Pipeline

PROBE_BYTES, PROBES = 4_000_000, 3


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, numbers: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.forward_s = forward_s
        time.sleep(forward_s)
        return x.new_zeros(1, numbers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        time.sleep(2 * ctx.forward_s)
        return torch.zeros_like(x), torch.zeros_like(weight), None, None


class Sleeping(nn.Module):
    """A layer that sleeps, and twice as long in its backward: ``[1, n]`` to ``[1, numbers]``."""

    def __init__(self, forward_s: float, numbers: int, parameters: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))
        self._args = forward_s, numbers

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Sleep.apply(x, self.weight, *self._args)
        return found


def link_bandwidth() -> float:
    """Return the bytes/s of a tensor from worker 0 to worker 1 while nobody else sends."""
    tensor, answer, seconds = torch.zeros(PROBE_BYTES // 4), torch.zeros(1), []
    for _ in range(PROBES + 1):  # the first makes the connection
        dist.barrier()
        start = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(tensor, 1)
            dist.recv(answer, 1)
        elif dist.get_rank() == 1:
            dist.recv(tensor, 0)
            dist.send(answer, 0)
        seconds.append(time.perf_counter() - start)
    return PROBE_BYTES / sorted(seconds[1:])[PROBES // 2]


def measured(case: Case, repeats: int) -> dict[str, list[Any]]:
    """Train with the other workers; return the fields of ``shared_links.Measured``."""
    numbers, replicas = case.message_bytes // 4, case.replicas
    layers = [Sleeping(s, numbers, case.weight_bytes // 4) for s in case.forward_s]
    pipeline = Pipeline(
        nn.Sequential(*layers),
        case.method_schedule,
        balance=[1] * len(layers),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=nn.MSELoss(),
        transport="distributed",
    )
    batch = torch.zeros(case.microbatches, 1), torch.zeros(case.microbatches, numbers)
    pipeline.train([batch] * max(replicas))  # connections are made at the first use
    found: dict[str, list[Any]] = {"bandwidth": [], "seconds": [], "passes": []}
    for _ in range(repeats):
        found["bandwidth"].append(link_bandwidth())
        frame = pipeline.train([batch] * case.batches).trace.frame
        found["seconds"].append(float(frame["end_s"].max() - frame["start_s"].min()))
        took = (frame["end_s"] - frame["start_s"]).groupby([frame["stage"], frame["op"]]).mean()
        found["passes"].append([took[stage].to_dict() for stage in range(len(layers))])
    return found


def main(cases: Path, repeats: int, results: Path) -> None:
    """Be one of the workers; the first writes the results."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    told = json.loads(cases.read_text())
    found = [measured(Case(**case), repeats) for case in told]
    if dist.get_rank() == 0:
        results.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
