"""Small networks, and S2VT."""

import pytest
import torch
from torch import nn

from pipekit.models import convnet, mlp, s2vt


def test_convnet_has_14_layers_and_the_asked_width() -> None:
    model = convnet(width=4)
    assert len(model) == 14
    channels = [layer.out_channels for layer in model if isinstance(layer, nn.Conv2d)]
    assert channels == [4, 8, 8, 8]


@pytest.mark.parametrize("depth", [1, 4])
def test_mlp_has_the_asked_shapes(depth: int) -> None:
    assert mlp(8, depth)(torch.rand(2, 8)).shape == (2, 8)
    assert mlp(8, depth, inputs=5, outputs=3)(torch.rand(2, 5)).shape == (2, 3)


def test_mlp_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1 linear layer, not 0"):
        mlp(8, 0)


def test_s2vt_has_pipedreams_size_and_the_shapes_that_its_docstring_says() -> None:
    model = s2vt(device="meta")
    megabytes = sum(4 * p.numel() for p in model.parameters()) / 1e6
    assert megabytes == pytest.approx(349, abs=0.5)
    assert len(model) == 4
    frames = torch.empty(2, 7, 4096, device="meta")
    words = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    embedded = model[0]((frames, words))
    assert [x.shape for x in embedded] == [(2, 7, 500), (2, 3, 500)]
    read = model[1](embedded)
    assert [x.shape for x in read] == [(2, 10, 1964), (2, 3, 500)]
    assert model[2](read).shape == (2, 3, 1964)
    assert model[3](model[2](read)).shape == (2, 3, 12_594)


def test_a_word_depends_on_all_frames_and_on_no_later_word() -> None:
    torch.manual_seed(0)
    model = s2vt(vocabulary=11, features=6, embedding=5, hidden=8)
    frames, words = torch.rand(1, 4, 6), torch.arange(3)[None]
    before = model((frames, words))
    other_words = words.clone()
    other_words[0, 2] = 9
    assert torch.equal(model((frames, other_words))[:, :2], before[:, :2])
    assert not torch.equal(model((frames, other_words))[:, 2], before[:, 2])
    other_frames = frames.clone()
    other_frames[0, 0] += 1
    assert not torch.isclose(model((other_frames, words)), before).all(dim=2).any()
