"""Families of transformers with masks, padding and labels of their own: equal, to the bit."""

import copy
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pipekit import Pipeline, oracle
from pipekit.partition.stages import stages
from pipekit.trees import tree_map
from tests.engine.examples import values
from tests.partition.families import FAMILIES, mask
from tests.partition.test_recorded_networks import METHODS, part

HOW: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01)}


def own_loss(output: Any, target: Tensor) -> Tensor:
    """Return what the model has computed from its labels."""
    loss: Tensor = output["loss"]
    return loss


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_with_masks_padding_and_its_own_labels(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of themselves
        torch.manual_seed(0)
        model, batch = FAMILIES[name]()
        layers = stages(model, batch)
    others = [batch, batch | {"input_ids": batch["input_ids"].roll(1, 0)}, batch]
    pairs = [(each, each["labels"]) for each in others]
    for method, (schedule, m) in METHODS.items():
        pipeline = Pipeline(layers, schedule, **values(**HOW, loss=own_loss))
        losses = pipeline.train(pairs).losses
        trained, balance = pipeline.state_dict(), pipeline.balance
        pipeline.close()
        if method == "flush":
            judge = copy.deepcopy(model)
            assert losses == plain_loop(judge, others, m)
            assert all(torch.equal(trained[n], each) for n, each in judge.state_dict().items())
            continue
        assert balance is not None
        found = oracle.train(
            layers, pairs, method=method, balance=balance, microbatches=m, loss=own_loss, **HOW
        )
        assert losses == found.losses
        for key, weight in found.weights[-1].items():
            assert torch.equal(trained[key.partition(".")[2]], weight), (method, key)


def plain_loop(model: Any, batches: list[dict[str, Tensor]], m: int) -> list[float]:
    """Train as people do, with the loss that the model returns for so many parts of a batch."""
    optimizer, losses = HOW["optimizer"](model.parameters()), []
    for batch in batches:
        optimizer.zero_grad()
        parts = [model(**tree_map(partial(part, k, m), batch)).loss / m for k in range(m)]
        for loss in parts:
            loss.backward()
        optimizer.step()
        losses.append(sum(loss.item() for loss in parts))
    return losses


def test_each_microbatch_of_the_families_is_padded_otherwise() -> None:
    first, second = mask().chunk(2)
    assert (first == 0).any()
    assert (second == 0).any()
    assert len(FAMILIES) >= 30
