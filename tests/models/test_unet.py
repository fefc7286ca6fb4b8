import pytest
import torch
from torch import nn

from pipekit.layers.skips import Skip, Skippable, links, require_matched
from pipekit.models import unet


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("convolutions", "channels", "published"),
    [(5, 64, 232_687_328), (6, 72, 362_157_516), (11, 128, 2_213_834_176)],
)
def test_parameters_are_as_published(convolutions: int, channels: int, published: int) -> None:
    model = unet(convolutions, channels, device="meta")
    assert parameters(model) == published
    assert len(model) == 11 * (convolutions + 1)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


def test_it_is_as_symmetric_as_the_paper_says() -> None:
    """torchgpipe, 4.2.2: five halvings and doublings, B convolutions between, C channels at first."""
    for convolutions, channels in (1, 8), (3, 7):
        x, cells = torch.empty(1, 3, 192, 192, device="meta"), [list[int]()]
        pixels, stashed = [192], list[torch.Size]()
        for layer in unet(convolutions, channels, device="meta"):
            if not isinstance(layer, Skippable):
                x = layer(x)
                cells[-1].append(x.shape[1])
                continue
            if layer.stashes:
                stashed.append(x.shape)
                x = nn.functional.max_pool2d(x, 2)
            else:
                size = stashed.pop()  # of the way down, joined with the same size of the way up
                assert (size[1], size[2]) == (x.shape[1], 2 * x.shape[2])
                x = x.new_empty(1, 2 * size[1], *size[2:])
            pixels.append(x.shape[2])
            cells.append([])
        widths = [channels * 2**level for level in range(5)]
        assert pixels == [192, 96, 48, 24, 12, 6, 12, 24, 48, 96, 192]
        assert [len(cell) for cell in cells] == [convolutions] * 10 + [convolutions + 1]
        assert [cell[0] for cell in cells[:5]] == widths
        assert [cell[convolutions - 1] for cell in cells[6:]] == [w // 2 for w in widths[::-1]]


def test_skips_are_nested() -> None:
    model = unet(2, 8, device="meta")
    require_matched(model)
    assert links(model) == [
        Skip("level 4/skip", 14, 17),
        Skip("level 3/skip", 11, 20),
        Skip("level 2/skip", 8, 23),
        Skip("level 1/skip", 5, 26),
        Skip("level 0/skip", 2, 29),
    ]


@pytest.mark.parametrize(
    ("convolutions", "channels", "message"),
    [
        (0, 8, "a cell needs at least 1 convolution, not 0"),
        (1, 1, "channels must be at least 2, .* not 1"),
    ],
)
def test_sizes_that_leave_nothing_are_refused(
    convolutions: int, channels: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        unet(convolutions, channels)
