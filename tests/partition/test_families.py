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
from tests.engine.examples import values
from tests.partition.networks import (
    DISTILBERT,
    GPT,
    GROUPED,
    HEADS,
    OPT,
    PAIR,
    T5,
    TEXT,
    Factory,
    hugging_face,
    tokens,
    without_dropout,
)
from tests.partition.test_recorded_networks import METHODS
from tests.people.plain import plain_loop

LENGTH, ROWS = 9, 4


def mask(length: int = LENGTH) -> Tensor:
    """Return a mask of texts, padded in every microbatch of two rows: [rows, length]."""
    lengths = torch.tensor([length, length - 2, length - 4, length - 1])
    return (torch.arange(length) < lengths[:, None]).long()


def _texts(length: int = LENGTH) -> dict[str, Tensor]:
    masked = mask(length)
    return {"input_ids": tokens(length, ROWS) * masked, "attention_mask": masked}


def next_tokens() -> dict[str, Tensor]:
    texts = _texts()
    return texts | {"labels": texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)}


def classes() -> dict[str, Tensor]:
    return _texts() | {"labels": torch.arange(ROWS) % 2}


def translations() -> dict[str, Tensor]:
    return _texts() | {"labels": tokens(6, ROWS).masked_fill(mask(6) == 0, -100)}


_ROUTED = GROUPED | {"output_router_logits": True, "num_experts_per_tok": 1}
_EXPERTS = {"num_experts": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
GENERATORS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            *("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3", "StableLm", "Olmo"),
            *("Olmo2", "Granite", "Cohere", "Starcoder2", "Glm", "SmolLM3", "Helium", "Ernie4_5"),
        ),
        GROUPED,
    ),
    **dict.fromkeys(("Phi", "GPTNeoX", "BioGpt", "Falcon"), TEXT),
    **{"OPT": OPT, "Bloom": HEADS, "GPTBigCode": GPT},
    **dict.fromkeys(("GPTJ", "CodeGen"), GPT | {"rotary_dim": 4}),
    "Mixtral": _ROUTED | {"num_local_experts": 2},
    "Qwen2Moe": _ROUTED | _EXPERTS,
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            *("Bert", "Roberta", "Electra", "XLMRoberta", "Camembert", "Ernie", "MPNet"),
            *("MegatronBert", "RoFormer", "RemBert", "ConvBert", "Albert", "LayoutLM"),
        ),
        TEXT,
    ),
    **{"Esm": TEXT | {"pad_token_id": 0}, "DistilBert": DISTILBERT},
}
TRANSLATORS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("Bart", "MBart", "Pegasus", "Blenderbot", "M2M100", "PLBart"), PAIR),
    **dict.fromkeys(("T5", "MT5", "UMT5"), T5),
}
FAMILIES: dict[str, Factory] = {
    **{n: hugging_face(f"{n}ForCausalLM", next_tokens, **s) for n, s in GENERATORS.items()},
    "GPT2": hugging_face("GPT2LMHeadModel", next_tokens, **GPT),
    "DebertaV2": hugging_face("DebertaV2ForMaskedLM", next_tokens, **TEXT),
    **{
        n: hugging_face(f"{n}ForSequenceClassification", classes, **s)
        for n, s in CLASSIFIERS.items()
    },
    **{
        n: hugging_face(f"{n}ForConditionalGeneration", translations, **s)
        for n, s in TRANSLATORS.items()
    },
    "Marian": hugging_face("MarianMTModel", translations, **PAIR),
}


HOW: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01)}


def own_loss(output: Any, target: Tensor) -> Tensor:
    """Return what the model has computed from its labels."""
    loss: Tensor = output["loss"]
    return loss


@pytest.mark.models
# Rightly: these means over labels are of other numbers of labels in each microbatch.
@pytest.mark.filterwarnings("ignore:the loss of 4 rows")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_with_masks_padding_and_its_own_labels(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of themselves
        torch.manual_seed(0)
        model, batch = FAMILIES[name]()
        without_dropout(model)
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
            assert losses == plain_loop(judge, HOW["optimizer"], own_loss, pairs, m)
            assert all(torch.equal(trained[n], each) for n, each in judge.state_dict().items())
            continue
        assert balance is not None
        found = oracle.train(
            layers, pairs, method=method, balance=balance, microbatches=m, loss=own_loss, **HOW
        )
        assert losses == found.losses
        for key, weight in found.weights[-1].items():
            assert torch.equal(trained[key.partition(".")[2]], weight), (method, key)


def test_each_microbatch_of_the_families_is_padded_otherwise() -> None:
    first, second = mask().chunk(2)
    assert (first == 0).any()
    assert (second == 0).any()
    assert len(FAMILIES) >= 30
