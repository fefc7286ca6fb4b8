"""torch.distributed.pipelining divides a weight that two stages of one rank share by m twice.

    torchrun --nproc-per-node 1 torch_scaled_twice.py

Each stage divides its parameters' gradients by the number of microbatches after its own last
backward (``scale_grads``), and the other stage then divides the sum again.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleLoopedBFS

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
stages = [PipelineStage(part, n, 2, torch.device("cpu")) for n, part in enumerate((first, last))]
schedule = ScheduleLoopedBFS([*stages], n_microbatches=2, loss_fn=loss)
schedule.step(x, target=y)
own = first.weight.grad
assert own is not None
print(f"the plain loop's gradient {plain.norm():.4f}, torch's {own.norm():.4f}")
dist.destroy_process_group()
