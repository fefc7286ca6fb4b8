"""The papers' recurrent network: video to sentence."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from pipekit.models.devices import on


def s2vt(
    vocabulary: int = 12_594,
    features: int = 4096,
    embedding: int = 500,
    hidden: int = 1964,
    device: Device = None,
) -> nn.Sequential:
    """Return an S2VT-like captioning network of 4 layers; by default as large as PipeDream's.

    S2VT (Venugopalan et al., "Sequence to Sequence - Video to Text", ICCV 2015) reads one feature
    vector a frame, then writes the sentence, with one stack of two LSTMs for both.

    - 0: embeds F frames and W words: ``[B, F, embedding]`` and ``[B, W, embedding]``
    - 1: first LSTM, over the frames and then W steps of zeros: ``[B, F + W, hidden]``, and the
      words as they came
    - 2: second LSTM, over that beside F steps of zeros and then the words; the last W steps are
      kept: ``[B, W, hidden]``
    - 3: linear layer: logits ``[B, W, vocabulary]``

    The input is a tuple: frame features ``[B, F, features]`` and the previous words, int64
    ``[B, W]``.

    PipeDream (section 5.1) prints 349 MB in all and a vocabulary of 12,594, no layer sizes.
    Assumed here: S2VT's own 4096 features of a frame (VGG's fc7) and embeddings of 500; ``hidden``
    units of each LSTM give 349 MB in float32.

    Args:
        vocabulary, features, embedding, hidden: words; numbers of a frame; of both once embedded;
            units of each LSTM.
        device: where the weights are made; "meta" for shapes without data.
    """
    with on(device):
        return nn.Sequential(
            _Embed(vocabulary, features, embedding),
            _FirstLSTM(embedding, hidden),
            _SecondLSTM(embedding, hidden),
            nn.Linear(hidden, vocabulary),
        )


class _Embed(nn.Module):
    def __init__(self, vocabulary: int, features: int, embedding: int) -> None:
        super().__init__()
        self.frame = nn.Linear(features, embedding)
        self.word = nn.Embedding(vocabulary, embedding)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        frames, words = inputs  # [B, F, features], [B, W]
        return self.frame(frames), self.word(words)  # [B, F, embedding], [B, W, embedding]


class _FirstLSTM(nn.Module):
    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        frames, words = inputs  # [B, F, embedding], [B, W, embedding]
        frames = F.pad(frames, (0, 0, 0, words.shape[1]))  # [B, F + W, embedding]
        return self.lstm(frames)[0], words  # [B, F + W, hidden], [B, W, embedding]


class _SecondLSTM(nn.Module):
    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden + embedding, hidden, batch_first=True)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        video, words = inputs  # [B, F + W, hidden], [B, W, embedding]
        frames = video.shape[1] - words.shape[1]
        words = F.pad(words, (0, 0, frames, 0))  # [B, F + W, embedding]
        states: Tensor = self.lstm(torch.cat([video, words], dim=2))[0]  # [B, F + W, hidden]
        return states[:, frames:]  # [B, W, hidden]
