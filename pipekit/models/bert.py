"""BERT-large with the head that predicts masked words."""

from torch import Tensor, nn
from torch.types import Device

from pipekit.models.devices import on
from pipekit.models.transformer import Block, Embedding, initialise


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
        layers, hidden, heads: L, h, and attention heads of a block.
        vocabulary: number of word pieces.
        sequence: most tokens in a sequence.
        dropout: probability of dropping an attention weight, or a feature.
        tied: whether the last layer's weights are the token embeddings.
        device: where the weights are made; "meta" for shapes without data.

    Raises:
        ValueError: the heads cannot have equal shares of the hidden size.
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
        initialise(model)
    return model


class _OneSegment(nn.Module):
    """Embeds tokens of the first of BERT's two segments."""

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
