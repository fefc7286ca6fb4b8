"""What is counted of one block stands for a network of many."""

from experiments.megatron import gpts
from experiments.megatron.gpts import S, V
from pipekit import models
from pipekit.models.transformer import GPTLayout

SMALL = GPTLayout(3, 64, 4)


def test_parameters_are_those_of_the_network_as_it_is_made() -> None:
    whole = models.gpt(*SMALL, V, S, tied=True, device="meta")
    assert gpts.parameters(SMALL) == sum(p.numel() for p in whole.parameters())
    assert gpts.parameters(SMALL, embeddings=False) == 3 * (12 * 64**2 + 13 * 64)


def test_operations_are_those_of_matrix_products_by_hand() -> None:
    into_three, scores, mixed, out = 6 * S * 64**2, 2 * S**2 * 64, 2 * S**2 * 64, 2 * S * 64**2
    perceptron = 2 * (2 * S * 64 * 256)
    forward = into_three + scores + mixed + out + perceptron
    assert gpts.block_flops(SMALL) == (forward, 2 * forward)
    assert gpts.logit_flops(SMALL) == (2 * S * 64 * V, 4 * S * 64 * V)
    assert gpts.sequence_flops(SMALL) == 3 * 4 * forward + 6 * S * 64 * V
