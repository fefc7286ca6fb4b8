"""GPT, BERT, and the block that both repeat.

B is the batch, T the tokens of a sequence, h the hidden size, a the attention heads.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from pipekit.layers.sequence_chunks import earlier_tokens, with_earlier
from pipekit.models.devices import on

Norm = Literal["pre", "post"]
"""Whether a block normalises what goes into its two halves (GPT-2) or their sums (BERT)."""


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
"""PipeDream-2BW's models (section 5), "similar to Megatron's"; the layouts are ours.  "355M" is
GPT-2 medium, "1.3B" GPT-3 XL's, "2.2B" Megatron's 2.5B with 48 of its 54 blocks, so that depths of
8 and 16 divide it; "3.8B" has 3.78 billion parameters, 3.91 billion with the embeddings."""


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
        vocabulary, sequence: V, GPT-2's 50,257 padded as by Megatron for eight GPUs; s, the most
            tokens in a sequence, 512 in PipeDream-2BW (section 5.1).
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
        _initialise(model)
    return model


def bert_large(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 30_522,
    sequence: int = 512,
    dropout: float = 0.1,
    tied: bool = False,
    device: Device = None,
) -> nn.Sequential:
    """Return BERT of ``layers + 5`` layers; by default BERT-large (Devlin et al., 2019).

    - 0: token, position and segment embeddings with their norm, int64 ``[B, T]`` to ``[B, T, h]``
    - 1 to L: blocks in which every token sees all others, ``[B, T, h]`` to itself
    - L + 1 to L + 3: linear layer, GELU and norm of the head, ``[B, T, h]``
    - L + 4: logits ``[B, T, V]``

    Published as 340M parameters; counted with this head 335,174,458 if the last layer is tied to
    the token embeddings, as BERT's is, and 366,428,986 if not.  Every sequence is one segment,
    without padding.  Train with :func:`pipekit.models.token_loss`.

    Args:
        layers, hidden, heads, dropout, device: as :func:`gpt` has them, and what it raises.
        vocabulary, sequence: number of word pieces, and most of them in a sequence.
        tied: whether the last layer's weights are the token embeddings.
    """
    with on(device):
        model = nn.Sequential(
            _OneSegment(vocabulary, sequence, hidden, dropout),
            *(
                Block(hidden, heads, causal=False, norm="post", dropout=dropout)
                for _ in range(layers)
            ),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, vocabulary),
        )
        if tied:
            model[-1].weight = model.get_parameter("0.embedding.token.weight")
        _initialise(model)
    return model


class SelfAttention(nn.Module):
    """Mixes tokens: ``[B, T, h]`` to ``[B, T, h]``, with 4 h^2 + 4 h parameters.

    ``causal``: a token sees only itself and those before it.
    """

    def __init__(self, hidden: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(
                f"{heads} heads cannot share a hidden size of {hidden}: use a multiple of {heads}"
            )
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.reads_all_tokens = not causal
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)  # [B, a, T, h / a]
            for part in self.query_key_value(x).chunk(3, dim=2)  # [B, T, h]
        )
        k, v = with_earlier(self, "keys", k, dim=2), with_earlier(self, "values", v, dim=2)
        earlier = k.shape[2] - tokens
        mask = x.new_ones(tokens, k.shape[2], dtype=torch.bool).tril(earlier) if earlier else None
        dropout = self.dropout if self.training else 0.0
        x = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal and not earlier, dropout_p=dropout
        )
        mixed: Tensor = self.output(x.transpose(1, 2).flatten(2))  # [B, T, h]
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what went in: ``[B, T, h]`` to itself.

    It has 12 h^2 + 13 h parameters; ``norm`` is one of :data:`Norm`, the rest as in
    :class:`SelfAttention`.
    """

    def __init__(
        self, hidden: int, heads: int, *, causal: bool, norm: Norm, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = norm
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = SelfAttention(hidden, heads, causal=causal, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x)))
            x = x + self.dropout(self._mlp(self.mlp_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x)))
            x = self.mlp_norm(x + self.dropout(self._mlp(x)))
        return x

    def _mlp(self, x: Tensor) -> Tensor:
        x = F.gelu(self.expand(x))  # [B, T, 4 h]
        contracted: Tensor = self.contract(x)  # [B, T, h]
        return contracted


class Embedding(nn.Module):
    """Turns tokens, int64 ``[B, T]``, into ``[B, T, h]``: a vector a token plus one a position."""

    def __init__(self, vocabulary: int, sequence: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(sequence, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        length, longest = tokens.shape[1], self.position.num_embeddings
        begin = earlier_tokens(self, length)
        if begin + length > longest:
            raise ValueError(
                f"a sequence of {begin + length} tokens has no position after {longest}: "
                f"make the model with sequence={begin + length}"
            )
        positions = torch.arange(begin, begin + length, device=tokens.device)
        x: Tensor = self.dropout(self.token(tokens) + self.position(positions))
        return x


class _OneSegment(nn.Module):
    def __init__(self, vocabulary: int, sequence: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, sequence, hidden)
        self.segment = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.segment.weight[0]  # [B, T, h]
        embedded: Tensor = self.dropout(self.norm(x))  # [B, T, h]
        return embedded


def _initialise(model: nn.Module) -> None:
    """Draw linear and embedding weights from N(0, 0.02^2), as GPT-2 and BERT, and clear biases.

    Where blocks normalise what goes in, what 2 L halves of L blocks add up is drawn sqrt(2 L) times
    smaller, as in GPT-2 (section 2.3), so that the sum does not grow with the depth.
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    pre = [m for m in model.modules() if isinstance(m, Block) and m.norm == "pre"]
    for block in pre:
        for linear in (block.attention.output, block.contract):
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * len(pre)))
