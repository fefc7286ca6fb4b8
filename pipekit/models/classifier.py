"""Fine-tuning: a language model's trunk with a head that classifies the whole text."""

import copy

from torch import Tensor, nn

from pipekit.models.transformer import Block, initialise


class MeanToken(nn.Module):
    """Averages a text's tokens: ``[B, T, h]`` to ``[B, h]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean token ``[B, h]``."""
        return x.mean(dim=1)


def classifier(model: nn.Sequential, classes: int, dropout: float = 0.1) -> nn.Sequential:
    """Return a network from tokens, int64 ``[B, T]``, to logits ``[B, classes]``.

    It begins with copies of a language model's layers up to the last block, and a GPT's final norm,
    under the same names; the head is new: mean token, linear layer, tanh, dropout, linear layer.
    BERT's head (Devlin et al., 2019, section 3) reads its first token in place of the mean; here
    no token was trained to stand for the text.

    Args:
        model: of :func:`gpt` or :func:`bert_large`, with the weights to start from, say a
            pipeline's: ``model.load_state_dict(pipeline.state_dict())``.
        classes: how many.
        dropout: probability of dropping a feature of the head.

    Raises:
        ValueError: the model has no transformer block.
    """
    blocks = [(number, layer) for number, layer in enumerate(model) if isinstance(layer, Block)]
    if not blocks:
        raise ValueError("a classifier is built on gpt's or bert_large's blocks; there is none")
    number, last = blocks[-1]
    end = number + (2 if last.norm == "pre" else 1)
    hidden = last.contract.out_features
    head = nn.Sequential(
        MeanToken(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
    initialise(head)
    return nn.Sequential(*copy.deepcopy(model[:end]), *head)
