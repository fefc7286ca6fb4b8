"""torch.distributed.pipelining does not add up the gradients of a weight that two stages share.

    torchrun --nproc-per-node 2 torch_tied_weights.py

Each rank keeps the gradient of its own use, so that the copies part ways at the first update.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

torch.manual_seed(0)
first, last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
last.weight = first.weight
x, y = torch.randn(8, 4), torch.randn(8, 4)
loss = nn.MSELoss()

loss(last(first(x)), y).backward()
assert first.weight.grad is not None
plain = first.weight.grad.clone()
first.weight.grad = None

dist.init_process_group("gloo")
rank = dist.get_rank()
stage = PipelineStage((first, last)[rank], rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss)
schedule.step(*(x,)[rank:], target=y if rank else None)
own = first.weight.grad
assert own is not None
print(f"rank {rank}: the plain loop's gradient {plain.norm():.4f}, this rank's {own.norm():.4f}")
total = own.clone()
dist.all_reduce(total)
print(f"rank {rank}: the sum over the ranks is the plain loop's: {torch.allclose(total, plain)}")
dist.destroy_process_group()
