"""What each layer should cost on a device that one need not own."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pipekit.choices import require_choice
from pipekit.clusters import Device
from pipekit.host.provenance import provenance
from pipekit.layers.module_state import as_trained
from pipekit.partition.partition import sequence_of
from pipekit.partition.recording.stage import input_of
from pipekit.profiling.sizes import dtype_of, rows_of, sizes
from pipekit.profiling.work import Work
from pipekit.trees import Tree, tree_bytes, tree_map


def analytic(
    model: nn.Sequential,
    sample: Tree,
    device: Device,
    *,
    dtype: str | None = None,
    efficiency: float = 0.5,
    memory_efficiency: float = 0.75,
) -> dict[str, Any]:
    """Estimate what each layer of a model costs in training on a named device, by the roofline.

    Operators run one after another, each for its operations at ``efficiency`` times the device's
    peak, or its bytes at ``memory_efficiency`` times its memory's bandwidth, whichever is longer
    (Williams et al., "Roofline", CACM 2009).  No two are fused, no cache holds anything, starting
    kernels is free, and updates count 0 s.

    - cuDNN does 3 x 3 convolutions of stride 1 in float32 with 2.25 times fewer multiplications
      (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016).
    - XLA fuses operators (Cloud TPU performance guide, "Fusion"): a pass is assumed to take as long
      as all its operations or as all its bytes.

    Nothing is computed: model and sample may be on device "meta".  Bytes are those of the CPU's
    kernels, as :func:`pipekit.profile` finds them, without the workspace of its LSTMs.

    Args:
        model: layers.
        sample: the input of one microbatch; the leading dimension is the rows.
        device: what to estimate for.
        dtype: what floating-point tensors become, one of ``device.peak_flops``; by default the
            model's own.
        efficiency: attained part of the peak.  The default is an assumption, not a measurement.
        memory_efficiency: attained part of the memory bandwidth; likewise.

    Returns:
        The arguments of a profile labelled "simulated".  Its provenance adds ``device``, ``dtype``,
        ``rows``, ``efficiency`` and ``memory_efficiency``.

    Raises:
        TypeError: the model is not a Sequential, or something that it takes or gives is no tensor.
        ValueError: the device's peak is not known for the dtype, an efficiency is not above 0 and
            at most 1, or a layer fails; the message names the layer.
    """
    model = sequence_of(model)
    for name, part in {"efficiency": efficiency, "memory_efficiency": memory_efficiency}.items():
        if not 0 < part <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, not {part}")
    sample = input_of(model, sample)
    rows = rows_of(sample)
    dtype = dtype_of(model, sample) if dtype is None else dtype
    require_choice(f"dtype on {device.name}", dtype, device.peak_flops)
    peak = device.peak_flops[dtype] * efficiency
    bandwidth = device.memory_bandwidth * memory_efficiency

    def seconds(work: Work) -> float:
        if device.library == "XLA":
            return work.seconds_at_once(peak, bandwidth)
        winograd = device.library == "cuDNN" and dtype == "float32"
        return work.seconds(peak, bandwidth, winograd)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        x = tree_map(partial(_stand_in, dtype=getattr(torch, dtype)), sample)
        found = sizes(_stand_in_model(model, getattr(torch, dtype)), x)
    return found._asdict() | {
        "layers": [
            replace(
                layer.profile, forward_s=seconds(layer.forward), backward_s=seconds(layer.backward)
            )
            for layer in found.layers
        ],
        "rows": rows,
        "input_bytes": tree_bytes(x),
        "provenance": provenance(
            "simulated",
            device=device.name,
            dtype=dtype,
            rows=rows,
            efficiency=efficiency,
            memory_efficiency=memory_efficiency,
        ),
    }


def _stand_in_model(model: nn.Sequential, dtype: torch.dtype) -> nn.Sequential:
    """Return a copy with stand-ins for all parameters and buffers; what is shared stays so."""
    stand_ins: dict[int, Any] = {id(t): _stand_in(t, dtype) for t in model.buffers()}
    for parameter in model.parameters():
        stand_ins[id(parameter)] = nn.Parameter(
            _stand_in(parameter, dtype), requires_grad=parameter.requires_grad
        )
    return as_trained(copy.deepcopy(model, stand_ins))


def _stand_in(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return, under ``FakeTensorMode``, a CPU tensor without data, for which the CPU's kernels are
    chosen; on device "meta" they would be others, for attention and recurrent layers.
    """
    dtype = dtype if tensor.is_floating_point() else tensor.dtype
    return torch.empty_like(tensor, device="cpu", dtype=dtype, requires_grad=False)
