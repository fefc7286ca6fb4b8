"""GPT, the language model of PipeDream-2BW, in its four sizes."""

from typing import NamedTuple

from torch import nn
from torch.types import Device

from pipekit.models.devices import on
from pipekit.models.transformer import Block, Embedding, initialise


class GPTLayout(NamedTuple):
    """The ``layers`` (blocks) of a GPT, ``hidden`` features of a token, ``heads`` of attention."""

    layers: int
    hidden: int
    heads: int


LAYOUTS = {
    "355M": GPTLayout(24, 1024, 16),
    "1.3B": GPTLayout(24, 2048, 16),
    "2.2B": GPTLayout(48, 1920, 20),
    "3.8B": GPTLayout(48, 2560, 32),
}
"""PipeDream-2BW's models (section 5), which the paper calls "similar to Megatron's" and gives no
layouts of; these are ours.  "355M" is GPT-2 medium and Megatron's smallest; "1.3B" is GPT-3 XL's;
"2.2B" is Megatron's 2.5B with 48 of its 54 blocks, so that depths of 8 and 16 divide it; "3.8B" has
3.78 billion parameters in its blocks and 3.91 billion with the embeddings, hence perhaps the 3.8
and the 3.9 that the paper prints."""


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int = 51_200,
    sequence: int = 512,
    dropout: float = 0.0,
    tied: bool = False,
    device: Device = None,
) -> nn.Sequential:
    """Return a GPT of ``layers + 3`` layers, e.g. ``gpt(*LAYOUTS["1.3B"], device="meta")``.

    - 0: token and position embeddings, from int64 ``[B, T]`` to ``[B, T, h]``
    - 1 to L: blocks, ``[B, T, h]`` to itself
    - L + 1: final norm, ``[B, T, h]``
    - L + 2: head, to logits ``[B, T, V]``

    With h hidden, V vocabulary and s sequence there are 12 L h^2 (1 + 13 / (12 h)) + (V + s) h
    parameters, as Megatron counts, and 2 h of the final norm; V h more unless the head is tied to
    the token embeddings.  Train with :func:`pipekit.models.token_loss`.

    Args:
        layers, hidden, heads: L, h, and attention heads of a block.
        vocabulary: number of tokens; by default GPT-2's 50,257 padded as Megatron pads them for
            eight GPUs.
        sequence: most tokens in a sequence; 512 in PipeDream-2BW (section 5.1).
        dropout: probability of dropping an attention weight, or a feature.
        tied: whether the head's weights are the token embeddings.
        device: where the weights are made; "meta" for shapes without data.

    Raises:
        ValueError: the heads cannot have equal shares of the hidden size.
    """
    with on(device):
        model = nn.Sequential(
            Embedding(vocabulary, sequence, hidden, dropout),
            *(
                Block(hidden, heads, causal=True, norm="pre", dropout=dropout)
                for _ in range(layers)
            ),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, vocabulary, bias=False),
        )
        if tied:
            model[-1].weight = model.get_parameter("0.token.weight")
        initialise(model)
    return model
