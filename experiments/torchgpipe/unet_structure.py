"""Whether our U-Net is built as torchgpipe's section 4.2.2 says."""

import torch
from torch import nn

from experiments.torchgpipe.unets import PIXELS
from pipekit.layers.skips import Skippable
from pipekit.models.unet import DEPTH, unet


def is_symmetric(convolutions: int, channels: int) -> bool:
    """Return whether a U-Net (B, C) is built as the paper says.

    Five times the image is halved, and doubled again; in between are B convolutions, at the start
    to C channels, which double with each halving and are halved with each doubling; each size of
    the way up is joined with the same size of the way down.
    """
    x = torch.zeros(1, 3, PIXELS, PIXELS, device="meta")
    cells: list[list[int]] = [[]]  # output channels of the convolutions of each cell
    pixels, joined = [PIXELS], 0
    stashed: list[torch.Size] = []
    for layer in unet(convolutions, channels, device="meta"):
        if not isinstance(layer, Skippable):
            x = layer(x)
            cells[-1].append(x.shape[1])
            continue
        if layer.stashes:
            stashed.append(x.shape)
            x = nn.functional.max_pool2d(x, 2)
        else:
            size = stashed.pop()
            joined += size[2] == 2 * x.shape[2] and size[1] == x.shape[1]
            x = x.new_empty(1, 2 * size[1], *size[2:])
        pixels.append(x.shape[2])
        cells.append([])
    down = [PIXELS // 2**level for level in range(DEPTH + 1)]
    widths = [channels * 2**level for level in range(DEPTH)]
    return (
        pixels == down + down[-2::-1]
        and joined == DEPTH
        and not stashed
        and [len(cell) for cell in cells] == [convolutions] * 2 * DEPTH + [convolutions + 1]
        and [cell[0] for cell in cells[:DEPTH]] == widths
        and [cell[convolutions - 1] for cell in cells[DEPTH + 1 :]]
        == [w // 2 for w in widths[::-1]]
        and tuple(x.shape) == (1, 1, PIXELS, PIXELS)
    )
