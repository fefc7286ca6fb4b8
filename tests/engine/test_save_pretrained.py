"""Networks of transformers: batches as its data collators make them, and models saved by it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from tests.engine.examples import different, pipeline

pytestmark = pytest.mark.models

transformers = pytest.importorskip("transformers")


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=16,
        use_cache=False,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    """Its first and last weights are one."""
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=16,
        n_layer=3,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def collated(batches: int = 3) -> list[Any]:
    torch.manual_seed(1)
    ids = torch.randint(40, (batches, 4, 8))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.3, -100)
    return [
        transformers.BatchEncoding(
            {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}
        )
        for x, y in zip(ids, labels, strict=True)
    ]


def summed(output: Any, batch: Any) -> Tensor:
    return F.cross_entropy(
        output["logits"].flatten(0, 1), batch["labels"].flatten(), reduction="sum"
    )


def counted(batch: Any) -> Tensor:
    labels: Tensor = batch["labels"]
    return (labels != -100).sum()


@pytest.mark.parametrize("transport", ["threads", "distributed"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_there_and_back_by_save_pretrained(
    make: Callable[[], Any], transport: str, tmp_path: Path
) -> None:
    batches, model = collated(), make()
    example = {name: batches[0][name] for name in ("input_ids", "attention_mask")}
    pipe = pk.Pipeline(
        pk.stages(model, example),
        schedules.flush(2, 2),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=pk.MeanOver(summed, counted),
        transport=transport,
    )
    losses = pipe.train(batches).losses

    judge, plain = make(), []
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        loss = 0.0
        for part in range(2):
            micro = {name: entry.chunk(2)[part] for name, entry in batch.items()}
            inputs = {name: micro[name] for name in example}
            share = summed(judge(**inputs), micro) * (1 / float(counted(batch)))
            share.backward()
            loss += share.item()
        optimizer.step()
        plain.append(loss)
    if make is llama:
        assert losses == plain
        assert different(pipe.state_dict(), judge.state_dict()) == []
    else:  # each stage sums its own uses of the tied weights before they meet
        assert losses == pytest.approx(plain, rel=1e-5)

    model.save_pretrained(tmp_path, state_dict=pipe.state_dict())
    loaded = type(model).from_pretrained(tmp_path)
    assert different(dict(loaded.state_dict()), pipe.state_dict()) == []
    assert different(dict(pipe.load_into(make()).state_dict()), pipe.state_dict()) == []
    again = pipeline(
        pk.stages(make(), example),
        schedules.flush(2, 2),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    again.load_state_dict(loaded.state_dict())
    assert different(again.state_dict(), pipe.state_dict()) == []
