"""AmoebaNet-D and U-Nets: their shapes, and that cut anywhere they compute what they do whole."""

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn

from pipekit import PipelinedModule
from pipekit.layers.seeded import layer_seed
from pipekit.layers.skips import Skip, links, require_matched
from pipekit.models import amoebanet_d, unet


def whole(model: nn.Sequential, x: Tensor) -> Tensor:
    """Run the layers with the seeds that a pipelined module gives them."""
    seed = int(torch.randint(2**31, ()))
    for number, layer in enumerate(model):
        torch.manual_seed(layer_seed(seed, number, 0))
        x = layer(x)
    return x


def passes(model: nn.Sequential, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of all parameters and of the input."""
    torch.manual_seed(3)
    x = x.detach().requires_grad_()
    output = run(x)
    wanted = [*model.parameters(), x]
    return [output, *torch.autograd.grad(output, wanted, torch.ones_like(output))]


@pytest.mark.parametrize(
    ("build", "pixels", "balances", "shape"),
    [
        (lambda: amoebanet_d(6, 8, classes=5), (64, 64), [[1] * 12], (5,)),
        (lambda: unet(1, 2), (64, 64), [[5, 6, 6, 5], [1] * 22], (1, 64, 64)),
        (lambda: unet(2, 3), (64, 96), [[12, 21]], (1, 64, 96)),
    ],
)
def test_cut_anywhere_they_compute_the_same_to_the_bit(
    build: Callable[[], nn.Sequential],
    pixels: tuple[int, int],
    balances: list[list[int]],
    shape: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    model, x = build(), torch.rand(2, 3, *pixels)
    expected = passes(model, lambda x: whole(model, x), x)
    assert expected[0].shape == (2, *shape)
    assert all(gradient.any() for gradient in expected[1:])
    for balance in balances:
        module = PipelinedModule(model, balance, chunks=1, checkpoint="never")
        assert all(map(torch.equal, passes(model, module, x), expected)), balance


def test_cells_give_the_shapes_that_the_docstring_says() -> None:
    x = torch.empty(2, 3, 224, 224, device="meta")
    model = amoebanet_d(6, 16, device="meta")
    x = model[0](x)
    assert x.shape == (2, 4, 112, 112)
    found = []
    for cell in model[1:-1]:
        before = x[0] if isinstance(x, tuple) else x
        x = cell(x)
        assert x[1] is before
        found.append(tuple(x[0].shape[1:]))
    sizes = [(24, 56), (48, 28), (64, 28), (64, 28), (96, 14), (128, 14), (128, 14)]
    assert found == [(channels, n, n) for channels, n in [*sizes, (192, 7), (256, 7), (256, 7)]]
    assert model[-1](x).shape == (2, 1000)


def test_any_image_will_do() -> None:
    assert amoebanet_d(3, 8, classes=5)(torch.rand(2, 3, 57, 57)).shape == (2, 5)


def test_skips_are_nested() -> None:
    model = unet(2, 8, device="meta")
    require_matched(model)
    down, up = accumulate([2, 3, 3, 3, 3]), [*accumulate([17, 3, 3, 3, 3])]
    named = [
        Skip(f"level {n}/skip", *ends) for n, ends in enumerate(zip(down, up[::-1], strict=True))
    ]
    assert links(model) == named[::-1]


@pytest.mark.parametrize(
    ("build", "sizes", "message"),
    [
        *((amoebanet_d, (n, 16), f"three equal groups of normal cells: {n} is no") for n in (0, 4)),
        *((amoebanet_d, (3, n), f"filters must be a multiple of 8, .*: {n}") for n in (0, 12)),
        (unet, (0, 8), "a cell needs at least 1 convolution, not 0"),
        (unet, (1, 1), "channels must be at least 2, .* not 1"),
    ],
)
def test_impossible_sizes_are_refused(
    build: Callable[..., object], sizes: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(*sizes)
