"""What VGG16's layers put out, and how large the models are (PipeDream, section 3.1, Figure 5)."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go

from pipekit.clusters import V100
from pipekit.models import PUBLISHED
from pipekit.papers.costs import published
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.settings import ROWS
from pipekit.plots import style

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


def vgg16_outputs() -> pd.DataFrame:
    """Return Figure 5: what each convolution, pool and linear layer of VGG16 puts out.

    A row a layer: layer ("conv1_1" to "fc8"), output_mb, parameters_mb (the whole network's), cut
    (percent by which the output is smaller than the parameters).
    """
    costs = published("vgg16", ROWS["vgg16"], V100)
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


def printed_sizes(outputs: pd.DataFrame) -> Finding:
    """Return the sizes of :data:`PRINTED` and then all parameters', in MB.

    Args:
        outputs: of :func:`vgg16_outputs`.
    """
    sizes = outputs.set_index("layer")["output_mb"]
    return Finding.exact(
        "pipedream-fig5-vgg16-activation-sizes",
        [*(float(sizes[layer]) for layer in PRINTED.values()), float(outputs["parameters_mb"][0])],
        ", ".join([*PRINTED, "parameters"]),
        "figure5.svg",
    )


def late_cuts(outputs: pd.DataFrame) -> pd.DataFrame:
    """Return the layers after which to cut: pool2, pool3, and every one from conv4_1 on."""
    names = list(outputs["layer"])
    late = names[names.index("conv4_1") :]
    return outputs[outputs["layer"].isin(["pool2", "pool3", *late])]


def saved_by_late_cuts(outputs: pd.DataFrame) -> Finding:
    """Return the least that a late cut saves, in percent of the parameters' bytes."""
    late = late_cuts(outputs)
    early = outputs[~outputs["layer"].isin(late["layer"])]
    return Finding.exact(
        "pipedream-sec31-vgg16-90pct",
        float(late["cut"].min()),
        f"behind the other layers, {', '.join(early['layer'])}, it is {early['cut'].min():.1f} to "
        f"{early['cut'].max():.1f} %",
    )


def figure5(frame: pd.DataFrame) -> go.Figure:
    """Draw :func:`vgg16_outputs`: bars on a logarithmic axis, and a line at the parameters."""
    parameters = frame["parameters_mb"].iloc[0]
    title = (
        f"Every layer of VGG16 puts out less than its parameters' {parameters:.0f} MB, "
        f"{frame['output_mb'].max():.0f} MB at most (exact)"
    )
    places = list(range(len(frame)))
    low, look = 0.05, style.OPS["FORWARD"]
    drawn = go.Figure(layout=style.layout(22 * len(frame), title))
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


def model_sizes() -> pd.DataFrame:
    """Return the parameters of the paper's networks, in millions and as MB in float32, by name."""
    counts = {
        name: sum(p.numel() for p in PUBLISHED[name].build(device="meta").parameters())
        for name in ("vgg16", "alexnet", "resnet50", "inception-v3", "s2vt")
    }
    sizes = {name: 4 * count / MB for name, count in counts.items()}
    millions = {name: count / 1e6 for name, count in counts.items()}
    return pd.DataFrame({"parameters (millions)": millions, "MB in float32": sizes})


def size_findings(models: pd.DataFrame) -> list[Finding]:
    """Return what :func:`model_sizes` says of the paper's numbers."""
    size_mb = models["MB in float32"]
    return [
        Finding.exact(
            "pipedream-intro-params-10-20m",
            models["parameters (millions)"].tolist(),
            f"{', '.join(models.index)}: all of the paper's own models are larger than it says",
        ),
        Finding.exact("pipedream-model-size-vgg16", size_mb["vgg16"]),
        Finding.exact(
            "pipedream-model-size-inception-v3",
            size_mb["inception-v3"],
            "torchvision's, without the auxiliary classifier (108.6 MB with it); no version of the "
            "published network has 157 MB, that is 39 million parameters",
        ),
        Finding.exact(
            "pipedream-model-size-s2vt",
            size_mb["s2vt"],
            "not independent: the paper prints no layer sizes, and ours were chosen to give 349 MB",
        ),
    ]
