"""What a network's layers hold and take: PipeDream's profile (sections 3.1 and 3.2, Figure 5)."""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from pipekit.clusters import V100
from pipekit.models import PUBLISHED
from pipekit.papers.pipedream.settings import PROFILED_MINIBATCHES
from pipekit.plots import style
from pipekit.profiling import Profile
from pipekit.profiling.layer_passes import Input, layer_name, run_backward, run_forward
from pipekit.trees import Tree, differentiable, leaves

MB = 1e6
"""Bytes in the paper's megabyte."""

VGG16_CONVOLUTIONS = (2, 2, 3, 3, 3)
"""Of the blocks that a pool ends."""

PRINTED: Mapping[str, str] = MappingProxyType(
    {
        "conv1": "conv1_1",
        "pool1": "pool1",
        "conv2": "conv2_1",
        "pool2": "pool2",
        "conv3": "conv3_1",
        "pool3": "pool3",
        "conv4": "conv4_1",
        "pool4, conv5": "pool4",
        "pool5": "pool5",
        "fc6, fc7": "fc6",
        "fc8": "fc8",
    }
)
"""The sizes of Figure 5, from the input on, each with one layer that has it."""

WARM_UP = 5
"""Minibatches of a profile run that do not count."""

KEEP_MEMORY = {f"MALLOC_{name}_THRESHOLD_": str(2**30) for name in ("MMAP", "TRIM")}
"""Environment in which glibc reuses memory, as PipeDream does (section 3.5).  Otherwise it may ask
the kernel for every larger output anew, in one process and not in the other."""

LEAST_SHARE = 0.01
"""Of a network's time, below which a layer is too short to compare."""


def vgg16_outputs(rows: int = 32) -> pd.DataFrame:
    """Return Figure 5: what each convolution, pool and linear layer of VGG16 puts out.

    Args:
        rows: of the minibatch.

    Returns:
        A row a layer: layer ("conv1_1" to "fc8"), output_mb, parameters_mb (the whole network's),
        cut (percent by which the output is smaller than the parameters).
    """
    with torch.device("meta"):
        sample = PUBLISHED["vgg16"].sample(rows)
    costs = Profile.analytic(PUBLISHED["vgg16"].build(device="meta"), sample, V100)
    kinds = ("Conv2d", "MaxPool2d", "Linear")
    sizes = [layer.output_bytes / MB for layer in costs.layers if layer.name.split()[1] in kinds]
    names = [
        name
        for block, convolutions in enumerate(VGG16_CONVOLUTIONS, start=1)
        for name in [*(f"conv{block}_{i + 1}" for i in range(convolutions)), f"pool{block}"]
    ]
    frame = pd.DataFrame({"layer": [*names, "fc6", "fc7", "fc8"], "output_mb": sizes})
    frame["parameters_mb"] = costs.parameter_bytes / MB
    frame["cut"] = 100 * (1 - frame["output_mb"] / frame["parameters_mb"])
    return frame


def printed_sizes(frame: pd.DataFrame) -> list[float]:
    """Return the sizes of :data:`PRINTED` and then all parameters', in MB."""
    outputs = frame.set_index("layer")["output_mb"]
    return [float(outputs[layer]) for layer in PRINTED.values()] + [
        float(frame["parameters_mb"].iloc[0])
    ]


def late_cuts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the layers after which to cut: pool2, pool3, and every one from conv4_1 on."""
    names = list(frame["layer"])
    late = names[names.index("conv4_1") :]
    return frame[frame["layer"].isin(["pool2", "pool3", *late])]


def figure(frame: pd.DataFrame, title: str, label: str) -> go.Figure:
    """Draw Figure 5: bars on a logarithmic axis, and a line at the parameters.

    Args:
        frame: of :func:`vgg16_outputs`.
        title: what is shown, without the label.
        label: what the numbers are.
    """
    places = list(range(len(frame)))
    low, look = 0.05, style.OPS["FORWARD"]
    drawn = go.Figure(layout=style.layout(22 * len(frame), f"{title} ({label})"))
    drawn.layout.margin.l = 120  # the sizes stand beside the names
    drawn.add_bar(
        name="layer's output",
        orientation="h",
        y=places,
        base=[low] * len(frame),
        x=(frame["output_mb"] - low).to_numpy(),
        width=0.8,
        marker={"color": look.color, "line": {"color": look.edge, "width": 1}},
    )
    parameters = frame["parameters_mb"].iloc[0]
    drawn.add_scatter(
        name=f"all parameters, {parameters:.1f} MB",
        mode="lines",
        x=[parameters] * 2,
        y=[-0.6, len(frame) - 0.4],
        line={"color": style.GREY, "dash": "dot", "width": 2},
    )
    ticks = [0.1, 1, 10, 100, 1000]
    drawn.update_xaxes(
        style.axis(
            "MB (10⁶ bytes)",
            type="log",
            range=[math.log10(low), 3],
            tickvals=ticks,
            ticktext=[f"{tick:g}" for tick in ticks],
        )
    )
    drawn.update_yaxes(
        style.axis(
            range=[len(frame) - 0.4, -0.6],
            tickvals=places,
            ticktext=[f"{row.layer}: {row.output_mb:.3g}" for row in frame.itertuples()],
            showgrid=False,
        )
    )
    return drawn


def parameters(models: Sequence[str]) -> dict[str, int]:
    """Return the number of parameters of published models."""
    return {
        name: sum(p.numel() for p in PUBLISHED[name].build(device="meta").parameters())
        for name in models
    }


def holds_three_quantities(model: nn.Sequential, sample: Tensor, costs: Profile) -> bool:
    """Return whether a profile has T_l, a_l and w_l of section 3.2 of every layer.

    They are looked for anew: a_l in the shape of the output and of the gradient that the next layer
    hands back, w_l in the parameters.  T_l is positive, and has a forward and a backward part
    wherever there is something to compute a gradient for.
    """
    x, found = sample, []
    for number, layer in enumerate(model):
        y = layer(x)
        returned = torch.autograd.grad(y.sum(), y)[0] if y.requires_grad else y
        weights = sum(p.nbytes for p in layer.parameters())
        found.append((layer_name(layer, number), y.nbytes, returned.nbytes, weights))
        x = y
    return all(
        (mine.name, mine.output_bytes, mine.output_bytes, mine.parameter_bytes) == theirs
        and mine.forward_s > 0
        and (mine.backward_s > 0 or not mine.parameter_bytes)
        for mine, theirs in zip(costs.layers, found, strict=True)
    )


def profile_run(
    model: nn.Sequential, sample: Tensor, minibatches: int = PROFILED_MINIBATCHES
) -> pd.DataFrame:
    """Time every layer in each of many minibatches, on the CPU (section 3.2).

    :func:`pipekit.profile` gives medians; this keeps every minibatch, to see how they vary.

    Args:
        model: layers; its gradients are added to.
        sample: the input of a minibatch.
        minibatches: how many count, after a few to warm up.

    Returns:
        T_l, forward and backward together, in seconds: a row a minibatch, a column a layer.
    """
    names = [layer_name(layer, number) for number, layer in enumerate(model)]
    rows = []
    for _ in range(WARM_UP + minibatches):
        x: Tree = sample
        seconds, pending = [], []
        for name, layer in zip(names, model, strict=True):
            entered = Input(x, editable=False)
            start = time.perf_counter()
            x = run_forward(layer, name, entered.tree)
            seconds.append(time.perf_counter() - start)
            pending.append((entered, x))
        gradients: list[Tensor | None] = [torch.ones_like(t) for t in differentiable(x)]
        for number in reversed(range(len(names))):
            entered, y = pending[number]
            start = time.perf_counter()
            run_backward(names[number], y, gradients)
            seconds[number] += time.perf_counter() - start
            gradients = entered.gradients
        rows.append(seconds)
    return pd.DataFrame(rows[WARM_UP:], columns=names)


def variation(times: pd.DataFrame) -> pd.DataFrame:
    """Return how a profile run's layers vary from minibatch to minibatch.

    Args:
        times: of :func:`profile_run`.

    Returns:
        A row a layer: layer, median_ms, cv (standard deviation over mean), cv_middle (the same of
        the middle 95 % of minibatches, without the few that the machine held up), ci (half of the
        mean's 95 % confidence interval, over the mean) and share (of the network's time).
    """
    middle = times.where((times >= times.quantile(0.025)) & (times <= times.quantile(0.975)))
    cv = times.std() / times.mean()
    frame = pd.DataFrame(
        {
            "median_ms": times.median() * 1e3,
            "cv": cv,
            "cv_middle": middle.std() / middle.mean(),
            "ci": 1.96 * cv / math.sqrt(len(times)),
            "share": times.median() / times.median().sum(),
        }
    )
    return frame.rename_axis("layer").reset_index()


def of_two_workers(
    build: Callable[[], nn.Sequential], sample: Tensor, minibatches: int
) -> list[pd.DataFrame]:
    """Return the profile runs of two equal workers at the same time: processes of one core each.

    Args:
        build: makes the model; a function of a module, as both processes call it.
        sample: the input of a minibatch.
        minibatches: as for :func:`profile_run`.
    """
    spawn = multiprocessing.get_context("spawn")
    before = dict(os.environ)
    os.environ.update(KEEP_MEMORY)
    try:
        with ProcessPoolExecutor(2, mp_context=spawn) as pool:
            runs = [pool.submit(_profile_run, build, sample, minibatches) for _ in range(2)]
            return [run.result() for run in runs]
    finally:
        os.environ.clear()
        os.environ.update(before)


def differences(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """Return the relative difference of each layer's medians in two profile runs.

    Only of layers that take at least 1 % of the time.
    """
    mine, theirs = one.median(), other.median()
    mean = (mine + theirs) / 2
    relative = (mine - theirs).abs() / mean
    return relative[mean >= LEAST_SHARE * mean.sum()]


def whole_passes(model: str, rows: int, repeats: int) -> tuple[float, float]:
    """Return the least seconds of an undivided published model's forward and backward, on the CPU.

    The least, as whatever else the machine does only makes them longer.

    Args:
        model: a key of :data:`pipekit.models.PUBLISHED`.
        rows: of the minibatch.
        repeats: how many count, after one to warm up.
    """
    torch.manual_seed(0)
    network, sample = PUBLISHED[model].build().train(), PUBLISHED[model].sample(rows)
    forwards, backwards = [], []
    for _ in range(1 + repeats):
        network.zero_grad()
        start = time.perf_counter()
        outputs = leaves(network(sample))
        middle = time.perf_counter()
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
        backwards.append(time.perf_counter() - middle)
        forwards.append(middle - start)
    return min(forwards[1:]), min(backwards[1:])


def _profile_run(
    build: Callable[[], nn.Sequential], sample: Tensor, minibatches: int
) -> pd.DataFrame:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return profile_run(build(), sample, minibatches)
