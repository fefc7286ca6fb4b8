"""Shapes from the ``config.json`` of a model on Hugging Face: one stack of transformer blocks."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipekit.performance.shapes import MLP, Attention, Experts, LatentAttention, Layer, Mamba, Shape
from pipekit.reading import read_json

_NAMES: Mapping[str, Sequence[str]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "width": ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim"),
    "vocabulary": ("vocab_size",),
    "active": ("num_experts_per_tok", "experts_per_token", "moe_topk"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "shared": (
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
        "shared_intermediate_size",
    ),
    "mamba_heads": ("mamba_num_heads", "mamba_n_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "mamba_groups": ("mamba_n_groups", "n_groups"),
    "mamba_state": ("mamba_d_state", "ssm_state_size"),
}
"""What families call the same number."""
_PLAIN = {
    *("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "codegen", "opt", "bloom", "mpt"),
    *("falcon", "phi", "starcoder2", "nemotron", "nemotron_h"),
    *("bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert"),
}
"""Families whose MLPs have no gate."""
_PLACES = "layer_types", "hybrid_override_pattern"  # where a hybrid places its Mamba layers
_WINDOWED = "sliding_attention", "chunked_attention"
_DESCRIBE = "of which there is no shape here: describe it as a pipekit.performance.shapes.Shape"


def from_config(path: str | os.PathLike[str]) -> Shape:
    """Return the shape that a ``config.json`` describes; of an image model's, that of its text.

    A ValueError names what it lacks, or the layers that no shape describes.
    """
    config = read_json(path, dict[str, Any], "a model's config.json")
    text = config.get("text_config")
    config |= text if isinstance(text, dict) else {}

    def number(what: str, default: int | None = None) -> int:
        names = _NAMES.get(what, (what,))
        found = next((config[name] for name in names if config.get(name)), default)
        if found is None:
            raise ValueError(f"{path} has none of {', '.join(names)}: add it")
        if not isinstance(found, int) or found < 0:
            raise ValueError(f"{path}: {names[0]} is {found!r}: give one whole number")
        return found

    if config.get("is_encoder_decoder"):
        raise ValueError(f"{path} has an encoder and a decoder, {_DESCRIBE}")
    if any("mamba" in name for name in config) and not any(map(config.get, _PLACES)):
        places = " or ".join(_PLACES)
        raise ValueError(f"{path} has Mamba layers, and no {places} that places them, {_DESCRIBE}")
    kind = str(config.get("model_type", "own"))
    gated = kind not in _PLAIN
    known, blocks = _layers(config, number, gated), _blocks(config, number)
    if unknown := {name for block in blocks for name in block} - {*known}:
        raise ValueError(f"{path} has layers of {', '.join(map(repr, unknown))}, {_DESCRIBE}")
    return Shape(
        str(config.get("_name_or_path") or kind),
        number("hidden"),
        number("vocabulary"),
        tuple(Counter(tuple(known[name] for name in block) for block in blocks).items()),
        tied=bool(config.get("tie_word_embeddings", not gated or kind.startswith("gemma"))),
        predictors=number("num_nextn_predict_layers", 0),
    )


def _layers(config: Mapping[str, Any], number: Callable[..., int], gated: bool) -> dict[str, Layer]:
    """Return the layers by the names of ``layer_types``, or letters of a hybrid's pattern."""
    heads, hidden = number("heads"), number("hidden")
    kv_heads = number("kv_heads", 1 if config.get("multi_query") else heads)
    attention = Attention(heads, kv_heads, number("head_dim", hidden // heads))
    whole: Layer = attention
    found: dict[str, Layer] = {}
    if window := number("sliding_window", number("attention_chunk_size", 0)):
        found |= dict.fromkeys(_WINDOWED, replace(attention, window=window))
    if latent := number("kv_lora_rank", 0):
        sizes = number("v_head_dim"), number("qk_rope_head_dim")
        whole = LatentAttention(heads, number("q_lora_rank", hidden), latent, *sizes)
    found |= dict.fromkeys(("full_attention", "attention", "*"), whole)
    if number("mamba_heads", 0):
        names = "mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state"
        found |= dict.fromkeys(("mamba", "M"), Mamba(*map(number, names)))
    width = number("width", 4 * hidden)
    found["-"] = MLP(width, gated)
    if experts := number("experts", 0):
        own = number("moe_intermediate_size", width)
        shared = number("shared", own * number("n_shared_experts", 0))
        fused = config.get("model_type") != "gpt_oss"
        active = number("active", 2)
        found["E"] = Experts(experts, active, own, gated, shared, fused_activation=fused)
    return found


def _blocks(config: Mapping[str, Any], number: Callable[..., int]) -> list[tuple[str, ...]]:
    if pattern := config.get("hybrid_override_pattern"):
        return [(letter,) for letter in pattern]
    layers = range(number("layers"))
    windowed = config.get("sliding_window") and config.get("use_sliding_window") is not False
    whole = number("sliding_window_pattern", len(layers) + 1) if windowed else 1
    usual = [_WINDOWED[0] if (layer + 1) % whole else "full_attention" for layer in layers]
    step = number("decoder_sparse_step", number("interleave_moe_layer_step", 1))
    sparse = {*layers[number("first_k_dense_replace", step - 1) :: step]}
    sparse = sparse - {*(config.get("mlp_only_layers") or ())} if number("experts", 0) else set()
    kinds = config.get("layer_types") or usual
    pairs = zip(layers, kinds, strict=False)
    return [(kind, "E" if layer in sparse else "-") for layer, kind in pairs]
