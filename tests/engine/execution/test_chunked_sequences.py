"""Sequences in chunks (Seq1F1B) train as whole ones do, up to the order of sums."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pipekit as pk
from pipekit import Schedule, ScheduleError, models, schedules
from pipekit.schedules import Op, seq1f1b
from tests.engine.examples import Trained, pipeline, sgd, trained, unlike
from tests.people.test_torchgpipe import Calls

MICROBATCHES, CHUNKS, TOKENS = 2, 4, 16
SEQ1F1B = seq1f1b(2, MICROBATCHES, chunks=CHUNKS)


def gpt() -> nn.Sequential:
    """Weights so large that tokens far apart matter to one another."""
    torch.manual_seed(0)
    model = models.gpt(2, 16, 2, vocabulary=11, sequence=TOKENS).double()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.5)
    return model


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(11, (4, TOKENS))
    return tokens, tokens.roll(-1, dims=1)


def outcome(schedule: Schedule, **options: Any) -> Trained:
    pipe = pipeline(gpt(), schedule, [2, 3], optimizer=sgd, loss=models.token_loss, **options)
    return trained(pipe, [batch()] * 3)


def test_chunks_train_as_the_whole_sequence() -> None:
    losses, state = outcome(SEQ1F1B)
    expected_losses, expected = outcome(schedules.flush(2, MICROBATCHES))
    assert losses == pytest.approx(expected_losses, rel=1e-12)
    for name, weight in expected.items():
        torch.testing.assert_close(state[name], weight, rtol=1e-12, atol=1e-12)


def test_no_bit_depends_on_the_transport_or_on_recomputation() -> None:
    expected = outcome(SEQ1F1B)
    for options in ({"transport": "distributed"}, {"recompute": "always"}):
        assert unlike(outcome(SEQ1F1B, **options), expected) == []


def test_a_layer_that_is_known_to_read_other_tokens_is_refused_when_built() -> None:
    for layer in (nn.LSTM(3, 3), nn.MultiheadAttention(4, 2), models.bert_large(1, 16, 2)[1]):
        with pytest.raises(ValueError, match=r"layer 1\S* \(\w+\) reads other tokens than its"):
            pk.Pipeline([nn.Linear(4, 4), layer], SEQ1F1B, optimizer=sgd, loss=models.token_loss)


def test_any_other_is_refused_before_training() -> None:
    attention = functional.scaled_dot_product_attention
    own = Calls(lambda x: attention(x, x, x, is_causal=True))
    model = nn.Sequential(nn.Embedding(11, 11), own)
    pipe = pk.Pipeline(model, SEQ1F1B, optimizer=sgd, loss=models.token_loss)
    with pytest.raises(ValueError, match="output for a sequence differs in 4 chunks"):
        pipe.train([batch()])


def test_batches_that_cannot_be_cut_are_refused() -> None:
    pipe = pk.Pipeline(gpt(), SEQ1F1B, optimizer=sgd, loss=models.token_loss)
    tokens, target = batch()
    for m, n in (4, 15), (3, 16):
        with pytest.raises(ValueError, match=f"{m} rows of {n} tokens, for 2 microbatches of 4"):
            pipe.train([(tokens[:m, :n], target[:m, :n])])
    with pytest.raises(ValueError, match="with the target of each token"):
        pipe.train([(tokens, target[:, 0])])


def test_split_backwards_with_chunks_are_refused() -> None:
    passes = [(Op.FORWARD, 0, 0), (Op.FORWARD, 0, 1)]
    for k in 1, 0:
        passes += [(Op.BACKWARD_INPUT, 0, k), (Op.BACKWARD_WEIGHT, 0, k)]
    schedule = replace(Schedule.one_batch("split", [passes]), chunks=2)
    with pytest.raises(ScheduleError, match="with backwards in two parts, which Pipeline cannot"):
        pk.Pipeline(gpt(), schedule, optimizer=sgd, loss=models.token_loss)
