"""Networks that train on a CPU in seconds."""

from itertools import pairwise

from torch import nn


def convnet(width: int = 16) -> nn.Sequential:
    """Return a convolutional network for images ``[B, 1, 28, 28]``, giving logits ``[B, 10]``.

    It has 14 layers; cut as 3, 2, 2, 7 at width 16, no stage takes more than a third of the time on
    a CPU.  ``width`` are the channels of the first convolution, half of the others'.
    """
    hidden = 8 * width
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),  # [B, width, 28, 28]
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, width, 14, 14]
        nn.Conv2d(width, 2 * width, 3, padding=1),  # [B, 2 width, 14, 14]
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),  # [B, 2 width, 7, 7]
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),  # [B, 98 width]
        nn.Linear(98 * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def mlp(
    width: int, depth: int, inputs: int | None = None, outputs: int | None = None
) -> nn.Sequential:
    """Return ``depth`` linear layers with a ReLU between each two: ``2 depth - 1`` layers.

    Args:
        width: features of every hidden layer.
        depth: number of linear layers, at least 1.
        inputs, outputs: features of a row going in and out; ``width`` when None.

    Raises:
        ValueError: there would be no layer.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1 linear layer, not {depth}")
    features = [inputs or width, *[width] * (depth - 1), outputs or width]
    layers: list[nn.Module] = []
    for before, after in pairwise(features):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def image_mlp(width: int = 128, depth: int = 8) -> nn.Sequential:
    """Return an :func:`mlp` for images; ``width`` and ``depth`` are those of its linear layers.

    Images are ``[B, 1, 28, 28]``, logits ``[B, 10]``.
    """
    return nn.Sequential(nn.Flatten(), *mlp(width, depth, inputs=28 * 28, outputs=10))
