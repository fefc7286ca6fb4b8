"""Networks as people bring them, recorded: equal to a plain loop to the bit."""

import copy
import warnings
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, oracle, schedules
from pipekit.partition.recording.batch import resized
from pipekit.partition.recording.templates import tensors
from pipekit.partition.stages import stages
from tests.engine.examples import values
from tests.partition.networks import (
    DISTILBERT,
    FAST,
    GPT,
    GROUPED,
    HEADS,
    NETWORKS,
    OPT,
    PAIR,
    T5,
    TEXT,
    Factory,
    build,
    hugging_face,
    tokens,
    without_dropout,
)
from tests.people.plain import plain_loop

OPTIMIZER = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
SHARING = {"gpt2", "t5", "bart", "twice", "tied"}
"""Weights with several uses, whose gradients have to be summed in the plain loop's order."""


def cases() -> Iterator[Any]:
    """Yield (network, microbatches); slow ones only for ``make models``."""
    for name, m in product(NETWORKS, (1, 2)):
        marks = () if name in FAST else pytest.mark.models
        if m == 1 or name in SHARING:
            yield pytest.param(name, m, marks=marks, id=f"{name}-{m}")


@lru_cache(2)
def recorded(name: str) -> tuple[nn.Module, Any, nn.Sequential]:
    """Return a network as it was before it was recorded, a batch, and its layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what libraries say of themselves
        model, batch = build(name)
        return copy.deepcopy(model), batch, stages(model, batch)


def loss(output: Any, target: Tensor) -> Tensor:
    """Weigh all floating-point outputs, each number with one of its own."""
    total = torch.zeros(())
    for tensor in tensors(output):
        if tensor.is_floating_point():
            weights = torch.linspace(-1, 1, tensor[0].numel()).view_as(tensor[0])
            total = total + ((tensor + target[0]) * weights).square().mean()
    return total


@pytest.mark.parametrize(("name", "m"), list(cases()))
def test_a_network_as_people_bring_it_trains_as_a_plain_loop_does(name: str, m: int) -> None:
    model, batch, layers = recorded(name)
    judge = copy.deepcopy(model)
    assert layers.state_dict().keys() == model.state_dict().keys()

    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(2)]
    pipeline = Pipeline(layers, schedules.flush(3, m), optimizer=OPTIMIZER, loss=loss)
    run = pipeline.train(batches)

    assert run.losses == plain_loop(judge, OPTIMIZER, loss, batches, m)
    trained = pipeline.state_dict()
    assert list(trained) == list(model.state_dict())
    for key, tensor in judge.state_dict().items():
        assert torch.equal(trained[key], tensor), key
    judge.load_state_dict(trained)


HOW: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.01)}
METHODS: dict[str, tuple[Any, int]] = {
    "flush": (schedules.flush(2, 2), 2),
    "2bw": (schedules.two_bw(2, 2), 2),
    "pipedream": (schedules.pipedream(2), 1),
}
FAST_WITH_VERSIONS = {"unet", "tied"}


def with_versions() -> Iterator[Any]:
    """Yield (network, method); most of them only for ``make models``."""
    for name, method in product(NETWORKS, METHODS):
        marks = () if name in FAST_WITH_VERSIONS else pytest.mark.models
        yield pytest.param(name, method, marks=marks, id=f"{name}-{method}")


@pytest.mark.parametrize(("name", "method"), list(with_versions()))
def test_every_method_trains_its_stages_as_the_oracle_does(name: str, method: str) -> None:
    schedule, microbatches = METHODS[method]
    _, batch, layers = recorded(name)
    rows = len(tensors(batch)[0])
    batches = [(batch, torch.full((rows,), 0.1 * number)) for number in range(4)]
    how = HOW | {"loss": loss}
    pipeline = Pipeline(layers, schedule, **values(**how))
    pipeline.train(batches)
    assert pipeline.balance is not None
    judge = oracle.train(
        layers, batches, method=method, balance=pipeline.balance, microbatches=microbatches, **how
    )
    trained = pipeline.state_dict()
    for key, weight in judge.weights[-1].items():
        assert torch.equal(trained[key.partition(".")[2]], weight)


def with_lengths(batch: Any, length: int) -> Any:
    """Return a batch of texts, so long."""
    return resized(batch, {(number, 1): length for number in range(len(tensors(batch)))})


# --- families of transformers with masks, padding and labels of their own

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


def own_loss(output: Any, target: Tensor) -> Tensor:
    """Return what the model has computed from its labels."""
    loss: Tensor = output["loss"]
    return loss


@pytest.mark.models
# Rightly: these means over labels are of other numbers of labels in each microbatch.
@pytest.mark.filterwarnings("ignore:the loss of 4 rows")
@pytest.mark.filterwarnings("ignore:batch 1 has unequal parts of labels")
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
