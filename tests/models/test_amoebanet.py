import pytest
import torch

from pipekit.models import amoebanet_d


@pytest.mark.parametrize(
    ("layers", "filters", "published"),
    [(18, 208, 81_505_540), (18, 544, 542_734_840), (36, 544, 1_055_832_376)],
)
def test_parameters_are_as_published(layers: int, filters: int, published: int) -> None:
    model = amoebanet_d(layers, filters, device="meta")
    assert sum(p.numel() for p in model.parameters()) == published
    assert len(model) == layers + 6
    assert all(tensor.is_meta for tensor in model.state_dict().values())


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
    assert found == [
        (3 * 8, 56, 56),
        (3 * 16, 28, 28),
        *[(4 * 16, 28, 28)] * 2,
        (3 * 32, 14, 14),
        *[(4 * 32, 14, 14)] * 2,
        (3 * 64, 7, 7),
        *[(4 * 64, 7, 7)] * 2,
    ]
    assert model[-1](x).shape == (2, 1000)


@pytest.mark.parametrize("pixels", [32, 57])
def test_any_image_will_do(pixels: int) -> None:
    assert amoebanet_d(3, 8, classes=5)(torch.rand(2, 3, pixels, pixels)).shape == (2, 5)


@pytest.mark.parametrize(
    ("layers", "filters", "message"),
    [(n, 16, f"three equal groups of normal cells: {n} is no") for n in (0, 4)]
    + [(3, n, f"filters must be a multiple of 8, .*: {n}") for n in (0, 12)],
)
def test_impossible_sizes_are_refused(layers: int, filters: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        amoebanet_d(layers, filters)
