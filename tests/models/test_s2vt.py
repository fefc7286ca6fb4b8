import pytest
import torch
from torch import nn

from pipekit.models import s2vt


def size_mb(model: nn.Module) -> float:
    return sum(4 * p.numel() for p in model.parameters()) / 1e6


def test_it_is_as_large_as_pipedreams() -> None:
    assert size_mb(s2vt(device="meta")) == pytest.approx(349, abs=0.5)


def test_layers_give_the_shapes_that_the_docstring_says() -> None:
    model = s2vt(device="meta")
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
