"""Families of transformers with masks, padding and labels of their own: equal, to the bit."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pipekit import Pipeline, oracle
from pipekit.partition.stages import stages
from pipekit.trees import tree_map
from tests.engine.examples import values
from tests.partition.networks import Network, tokens, without_dropout
from tests.partition.test_recorded_networks import METHODS, part

LENGTH, ROWS = 9, 4
Family = Callable[[], Network]
FAMILIES: dict[str, Family] = {}


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


def _family(name: str, model: str, batch: Callable[[], Any], **sizes: Any) -> None:
    def build() -> Network:
        transformers = pytest.importorskip("transformers")
        kind = getattr(transformers, model)
        config = kind.config_class(**sizes)
        config.use_cache = False
        made = Network(kind(config), batch())
        without_dropout(made.model)
        return made

    FAMILIES[name] = build


_NONE = {
    **{"attention_dropout": 0.0, "hidden_dropout": 0.0, "activation_dropout": 0.0, "dropout": 0.0},
    **{"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "dropout_rate": 0.0},
    **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layerdrop": 0.0},
}
_HEADS = {"num_attention_heads": 4, "num_hidden_layers": 3, "hidden_size": 32, "vocab_size": 100}
_TEXT = _NONE | _HEADS | {"intermediate_size": 64, "max_position_embeddings": 32}
_GROUPED = _TEXT | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
_GPT = _NONE | {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": 100, "n_positions": 32}
_PAIR = _NONE | {
    **{"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "vocab_size": 100},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0},
    **{"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "decoder_start_token_id": 0},
}
_T5 = _NONE | {
    **{"num_layers": 2, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 100},
    **{"decoder_start_token_id": 0, "pad_token_id": 0},
}

for _name in (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3", "StableLm", "Olmo"),
    *("Olmo2", "Granite", "Cohere", "Starcoder2", "Glm", "SmolLM3", "Helium", "Ernie4_5"),
):
    _family(_name, f"{_name}ForCausalLM", next_tokens, **_GROUPED)
_family("Phi", "PhiForCausalLM", next_tokens, **_TEXT)
_family("GPTNeoX", "GPTNeoXForCausalLM", next_tokens, **_TEXT)
_family("OPT", "OPTForCausalLM", next_tokens, **_TEXT, ffn_dim=64, word_embed_proj_dim=32)
_family("BioGpt", "BioGptForCausalLM", next_tokens, **_TEXT)
_family("Bloom", "BloomForCausalLM", next_tokens, **_NONE, **_HEADS)
_family("Falcon", "FalconForCausalLM", next_tokens, **_TEXT)
_family("GPT2", "GPT2LMHeadModel", next_tokens, **_GPT)
_family("GPTBigCode", "GPTBigCodeForCausalLM", next_tokens, **_GPT)
_family("GPTJ", "GPTJForCausalLM", next_tokens, **_GPT, rotary_dim=4)
_family("CodeGen", "CodeGenForCausalLM", next_tokens, **_GPT, rotary_dim=4)
_ROUTED = _GROUPED | {"output_router_logits": True, "num_experts_per_tok": 1}
_family("Mixtral", "MixtralForCausalLM", next_tokens, **_ROUTED, num_local_experts=2)
_family(
    "Qwen2Moe",
    "Qwen2MoeForCausalLM",
    next_tokens,
    **_ROUTED | {"num_experts": 2, "moe_intermediate_size": 16},
    shared_expert_intermediate_size=16,
)
for _name in (
    *("Bert", "Roberta", "Electra", "XLMRoberta", "Camembert", "Ernie", "MPNet", "MegatronBert"),
    *("RoFormer", "RemBert", "ConvBert", "Albert", "LayoutLM"),
):
    _family(_name, f"{_name}ForSequenceClassification", classes, **_TEXT)
_family("DebertaV2", "DebertaV2ForMaskedLM", next_tokens, **_TEXT)
_family("Esm", "EsmForSequenceClassification", classes, **_TEXT, pad_token_id=0)
_family(
    "DistilBert",
    "DistilBertForSequenceClassification",
    classes,
    **_NONE | {"n_layers": 3, "n_heads": 4, "dim": 32, "hidden_dim": 64, "vocab_size": 100},
)
for _name in ("Bart", "MBart", "Pegasus", "Blenderbot", "M2M100", "PLBart"):
    _family(_name, f"{_name}ForConditionalGeneration", translations, **_PAIR)
_family("Marian", "MarianMTModel", translations, **_PAIR)
for _name in ("T5", "MT5", "UMT5"):
    _family(_name, f"{_name}ForConditionalGeneration", translations, **_T5)


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
