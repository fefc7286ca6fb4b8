"""The block that GPT and BERT repeat.

B is the batch, T the tokens of a sequence, h the hidden size, a the attention heads.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm = Literal["pre", "post"]
"""Whether a block normalises what goes into its two halves (GPT-2) or their sums (BERT)."""


class SelfAttention(nn.Module):
    """Mixes tokens: ``[B, T, h]`` to ``[B, T, h]``, with 4 h^2 + 4 h parameters.

    ``causal``: a token sees only itself and those before it.

    Raises:
        ValueError: the heads cannot have equal shares of the hidden size.
    """

    def __init__(self, hidden: int, heads: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(
                f"{heads} heads cannot share a hidden size of {hidden}: use a multiple of {heads}"
            )
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens ``[B, T, h]``."""
        batch, tokens, _ = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)  # [B, a, T, h / a]
            for part in self.query_key_value(x).chunk(3, dim=2)  # [B, T, h]
        )
        dropout = self.dropout if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
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
        """Return the new tokens ``[B, T, h]``."""
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
        """Return the embedded tokens ``[B, T, h]``.

        Raises:
            ValueError: the sequence is longer than there are positions.
        """
        length, longest = tokens.shape[1], self.position.num_embeddings
        if length > longest:
            raise ValueError(
                f"a sequence of {length} tokens has no position after {longest}: "
                f"make the model with sequence={length}"
            )
        positions = torch.arange(length, device=tokens.device)
        x: Tensor = self.dropout(self.token(tokens) + self.position(positions))
        return x


def initialise(model: nn.Module) -> None:
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
