"""What VGG16's layers put out, and how large the models are (PipeDream, section 3.1, Figure 5)."""

from collections.abc import Mapping
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import nn

from experiments.pipedream.settings import ROWS
from experiments.recorded.findings import Finding
from experiments.study.costs import published
from experiments.study.figures import named_rows, with_line
from pipekit.clusters import V100
from pipekit.models import PUBLISHED

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
    """Return the sizes of :data:`PRINTED` and then all parameters', in MB."""
    sizes = outputs.set_index("layer")["output_mb"]
    value = [*sizes[list(PRINTED.values())].tolist(), float(outputs["parameters_mb"][0])]
    names, claim = ", ".join([*PRINTED, "parameters"]), "pipedream-fig5-vgg16-activation-sizes"
    return Finding.exact(claim, value, names, "figure5.svg")


def late_cuts(outputs: pd.DataFrame) -> pd.DataFrame:
    """Return the layers after which to cut: pool2, pool3, and every one from conv4_1 on."""
    names = list(outputs["layer"])
    late = names[names.index("conv4_1") :]
    return outputs[outputs["layer"].isin(["pool2", "pool3", *late])]


def saved_by_late_cuts(outputs: pd.DataFrame) -> Finding:
    """Return the least that a late cut saves, in percent of the parameters' bytes."""
    late = late_cuts(outputs)
    early = outputs[~outputs["layer"].isin(late["layer"])]
    others = (
        f"behind the other layers, {', '.join(early['layer'])}, it is {early['cut'].min():.1f} to "
        f"{early['cut'].max():.1f} %"
    )
    return Finding.exact("pipedream-sec31-vgg16-90pct", float(late["cut"].min()), others)


def figure5(frame: pd.DataFrame) -> go.Figure:
    """Draw :func:`vgg16_outputs` on a logarithmic axis, and a line at the parameters."""
    parameters = frame["parameters_mb"].iloc[0]
    sizes = {f"{row.layer}: {row.output_mb:.3g}": row.output_mb for row in frame.itertuples()}
    title = (
        f"Every layer of VGG16 puts out less than its parameters' {parameters:.0f} MB, "
        f"{frame['output_mb'].max():.0f} MB at most"
    )
    numbers = pd.DataFrame({"layer's output": sizes})
    figure, _ = named_rows(numbers, "MB (10⁶ bytes)", title=title, label="exact")
    ticks = [0.1, 1, 10, 100, 1000]
    figure.update_xaxes(type="log", range=[-1.3, 3], tickvals=ticks, ticktext=ticks)
    figure.update_layout(height=560)
    ends = [parameters] * 2, [-0.6, len(frame) - 0.4]
    return with_line(figure, *ends, "all parameters", "dot")


def model_sizes() -> pd.DataFrame:
    """Return the parameters of the paper's networks, in millions and as MB in float32, by name."""
    names = ("vgg16", "alexnet", "resnet50", "inception-v3", "s2vt")
    built = {name: PUBLISHED[name].build(device="meta") for name in names}
    counts = {name: sum(p.numel() for p in each.parameters()) for name, each in built.items()}
    table = pd.DataFrame({"parameters (millions)": counts}) / 1e6
    return table.assign(**{"MB in float32": {name: 4 * n / MB for name, n in counts.items()}})


def published_s2vt_mb(words: int = 12_594) -> float:
    """Return the MB in float32 of S2VT as published, for a vocabulary of so many words.

    Venugopalan et al., "Sequence to Sequence - Video to Text" (ICCV 2015): a frame's 4,096 features
    and a word are embedded in 500 numbers; the first LSTM of 1,000 units reads frames, the second
    the first's output and words.
    """
    with torch.device("meta"):
        layers = (
            nn.Linear(4096, 500),
            nn.Embedding(words, 500),
            nn.LSTM(500, 1000),
            nn.LSTM(1000 + 500, 1000),
            nn.Linear(1000, words),
        )
    return 4 * sum(p.numel() for layer in layers for p in layer.parameters()) / MB


def size_findings(models: pd.DataFrame) -> list[Finding]:
    """Return what :func:`model_sizes` says of the paper's numbers."""
    size_mb, millions = models["MB in float32"], models["parameters (millions)"].tolist()
    larger = (
        "10 to 20 million parameters (1), and 550, 157 and 349 MB for VGG16, Inception-v3 and S2VT "
        "(5.1), which are 138, 39 and 87 million in float32"
    )
    inception = (
        "torchvision's, without the auxiliary classifier (108.6 MB with it); no version of the "
        "published network has 157 MB, that is 39 million parameters"
    )
    published = (
        "S2VT as its authors published it, with a vocabulary of 12,594 words; PipeDream prints no "
        f"layer sizes, and the layers simulated elsewhere were chosen for {size_mb['s2vt']:.0f} MB"
    )
    return [
        Finding.exact(
            "pipedream-intro-params-10-20m", millions, ", ".join(models.index)
        ).contradicted(larger),
        Finding.exact("pipedream-model-size-vgg16", size_mb["vgg16"]),
        Finding.exact("pipedream-model-size-inception-v3", size_mb["inception-v3"], inception),
        Finding.exact("pipedream-model-size-s2vt", published_s2vt_mb(), published),
    ]
