"""What each layer costs, measured: real passes on the device at hand."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipekit.choices import require_choice
from pipekit.devices import is_accelerator, name_of, random_states_put_back, resolve
from pipekit.host.provenance import provenance
from pipekit.host.user_frames import hiding_frames, warn
from pipekit.layers.module_state import as_trained, copied
from pipekit.layers.pass_state import DTYPES
from pipekit.losses.losses import default_loss, made_up_target
from pipekit.partition.checks import require_data
from pipekit.partition.partition import sequence_of
from pipekit.partition.recording.stage import input_of
from pipekit.profiling.layer_profile import LayerProfile, combined
from pipekit.profiling.layer_times import (
    WARM_UP,
    OptimizerFactory,
    Stopwatch,
    TimedLayers,
    background_load,
)
from pipekit.profiling.profile import Profile
from pipekit.profiling.sizes import dtype_of, rows_of, sizes
from pipekit.progress import progress_bar
from pipekit.trees import Tree, tree_bytes, tree_map

_MOMENTUM: OptimizerFactory = partial(torch.optim.SGD, lr=0.0, momentum=0.9)


@hiding_frames
def profile(
    model: nn.Sequential,
    sample: Tree,
    device: str = "cpu",
    repeats: int = 10,
    *,
    loss: Callable[[Any, Any], Tensor] | None = default_loss,
    target: Tree = None,
    optimizer: OptimizerFactory | None = _MOMENTUM,
    autocast: torch.dtype | None = None,
    others: int | None = None,
    tolerance: float = 0.1,
    progress: bool = False,
) -> Profile:
    """Measure what each layer of a model costs in training, by default as one of two workers here.

    A repeat is a forward and a backward layer by layer, and beside it a second microbatch, in
    flight as in a pipeline, through the undivided model.  All numbers are medians, between events
    on a GPU; the layers' times are scaled so that they add up to the undivided model's mean.  Then
    backwards are run in two parts, for the input and for the weights, and scaled alike; on tiny
    layers the parts take up to three times as long as the whole.

    It runs on a copy, in training mode: the model, its gradients and buffers, the generators and
    the sample stay as they are.

    Args:
        model: layers, on any device but "meta".
        sample: the input of one microbatch: a tensor, or tuples, lists and dicts of tensors; the
            leading dimension is the rows.  A dict may hold more than a recorded model takes.
        device: "cpu", with PyTorch's present number of threads, or an accelerator's.
        repeats: how many count, after three to warm up.
        loss: ``loss(output, target)``, whose costs count as the last layer's; None: there is none,
            and the last layer's output gets ones as its gradient.
        target: what the loss compares the output with; None: it is made up for the default loss.
        optimizer: makes an optimizer from a list of parameters, whose step is timed layer by layer,
            as is the copying of weights.  None: updates and copies count 0 s.
        autocast: what forwards compute in where that is safe, as :class:`pipekit.Pipeline` has it.
        others: how many threads train copies of the model meanwhile, as a pipeline's other workers
            on this machine would.  None: 1 on a CPU and 0 elsewhere.
        tolerance: how far the sum of the layers' times may be from the undivided model's, as a
            part of that, before it is warned of.
        progress: whether to show a bar.

    Returns:
        A profile labelled "measured".  Its provenance adds ``device``, ``dtype``, ``autocast``,
        ``rows``, ``repeats``, ``others``; ``threads`` on a CPU and ``tf32`` on a GPU; ``step_s``
        (the undivided model's forward and backward), ``conservation`` (the layers' own sum over it)
        and ``tolerance``; and ``spread``, the largest interquartile range over median of a layer's
        time, with its ``spread_layer``, among the layers that take at least 1 % of the time.

    Raises:
        TypeError: the model is not a Sequential, or something that it takes or gives is no tensor.
        ValueError: there is no such device, the model has no data, a loss of one's own has no
            target, or a layer fails; the message names the layer.
    """
    model = sequence_of(model)
    require_choice("autocast", autocast, DTYPES)
    where = resolve(device)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    require_data(model, instead="; or use Profile.analytic, which runs nothing")
    if loss not in (None, default_loss) and target is None:
        raise ValueError("the loss needs a target: pass target=, the wanted output of the sample")
    sample = input_of(model, sample)
    rows = rows_of(sample)
    ours = as_trained(copied(model).to(where))
    x = _copied(sample, where)
    if others is None:
        others = 0 if is_accelerator(where) else 1
    if loss is not None:
        ours.append(_Loss(loss, None if target is None else _copied(target, where)))
    watch = Stopwatch(where)
    with random_states_put_back(where), torch.enable_grad():
        found, skips, ties = sizes(ours, tree_map(torch.clone, x), autocast)
        timed = TimedLayers(ours, x, autocast, [layer.edits_input for layer in found], watch)
        with background_load(ours, x, others, autocast):
            threads = torch.get_num_threads()
            rounds = WARM_UP + repeats
            shown: Any = {"desc": "profiling", "unit": "repeat", "disable": not progress}
            for _ in progress_bar(range(rounds), **shown):
                timed.time_step()
            timed.time_parts(rounds)
            if optimizer is not None:
                timed.time_updates(optimizer, rounds)
    medians = {
        part: np.array([np.median(watch.seconds((part, n))) for n in range(len(found))])
        for part in ("forward", "backward", "update", "copy", "backward_input", "backward_weight")
    }
    step_s = float(np.median(watch.seconds("whole forward", "whole backward")))
    names = [layer.profile.name for layer in found]
    alone = dict(zip(names, medians["forward"] + medians["backward"], strict=True))
    conservation = float(sum(alone.values()) / step_s)
    if abs(conservation - 1) > tolerance:
        warn(
            f"the layers' times add up to {conservation:.0%} of the undivided model's "
            f"{step_s * 1e3:.3g} ms, which is not within {tolerance:.0%} of it: the machine may be "
            f"busy, or the layers too short to be timed one by one"
        )
    scales = {}  # by which layers add up to the undivided model
    for whole in ("forward", "backward"):
        of_layers = sum(medians[whole])
        scales[whole] = watch.seconds(f"whole {whole}").mean() / of_layers if of_layers else 0.0
    for part, each in medians.items():
        each *= scales.get(part.partition("_")[0], 1.0)
    layers = []
    for number, layer in enumerate(found):
        times: Any = {f"{part}_s": float(each[number]) for part, each in medians.items()}
        layers.append(replace(layer.profile, **times))
    if loss is not None:
        layers[-2:] = [_with_loss(*layers[-2:])]
    record = provenance(
        "measured",
        dtype=dtype_of(ours, x),
        autocast=str(autocast).removeprefix("torch."),
        rows=rows,
        repeats=repeats,
        others=others,
        step_s=step_s,
        conservation=conservation,
        tolerance=tolerance,
        **_largest_spread(alone, watch),
        **_hardware(where, threads),
    )
    return Profile(tuple(layers), rows, tree_bytes(sample), record, skips, ties)


def _copied(tree: Tree, device: torch.device) -> Tree:
    return tree_map(lambda t: t.detach().to(device, copy=True), tree)


class _Loss(nn.Module):
    def __init__(self, loss: Callable[[Any, Any], Tensor], target: Tree) -> None:
        super().__init__()
        self.loss, self.target = loss, target

    def forward(self, output: Tree) -> Tensor:
        if self.target is None:
            self.target = made_up_target(output)
        return self.loss(output, self.target)


def _with_loss(last: LayerProfile, loss: LayerProfile) -> LayerProfile:
    """Return the model's last layer with the loss's costs; nothing else keeps its output."""
    kept = ("name", "output_bytes", "parameter_bytes", "buffer_bytes")
    of_the_model: Any = {each: getattr(last, each) for each in kept}
    return replace(combined((last, loss)), saves_output=True, **of_the_model)


def _largest_spread(alone: Mapping[str, float], watch: Stopwatch) -> dict[str, Any]:
    """Return the interquartile range over the median of the layer that varies most and matters."""
    total, spreads = sum(alone.values()), {}
    for number, (name, seconds) in enumerate(alone.items()):
        if seconds >= 0.01 * total:
            both = watch.seconds(("forward", number), ("backward", number))
            low, middle, high = np.percentile(both, [25, 50, 75])
            spreads[name] = float((high - low) / middle)
    widest = max(spreads, key=spreads.__getitem__)
    return {"spread": spreads[widest], "spread_layer": widest}


def _hardware(device: torch.device, threads: int) -> dict[str, Any]:
    """Return what was computed on, and how freely: TF32 makes float32 several times faster."""
    if not is_accelerator(device):
        return {"device": "cpu", "threads": threads}
    return {
        "device": name_of(device),
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "cudnn": torch.backends.cudnn.allow_tf32,
        },
    }
