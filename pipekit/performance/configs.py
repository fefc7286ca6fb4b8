"""Shapes from the ``config.json`` of a model on Hugging Face: one stack of transformer blocks."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipekit.performance.shapes import MLP, Attention, Experts, LatentAttention, Layer, Mamba, Shape
from pipekit.reading import read_json

_NAMES = {
    "hidden": "hidden_size n_embd n_embed d_model dim",
    "layers": "num_hidden_layers n_layer num_layers n_layers",
    "heads": "num_attention_heads n_head num_heads n_heads",
    "kv_heads": "num_key_value_heads num_kv_heads n_head_kv kv_n_heads multi_query_group_num",
    "head_dim": "head_dim kv_channels",
    "width": "intermediate_size_mlp intermediate_size n_inner ffn_dim hidden_dim ffn_hidden_size",
    "vocabulary": "vocab_size",
    "token_width": "word_embed_proj_dim embedding_size",
    "active": "num_experts_per_tok experts_per_token moe_topk moe_top_k moe_k num_selected_experts",
    "experts": "num_experts num_local_experts n_routed_experts moe_num_experts",
    "expert_width": "moe_intermediate_size expert_ffn_hidden_size intermediate_size",
    "dense_before": "first_k_dense_replace moe_layer_start_index",
    "sparse_step": "decoder_sparse_step interleave_moe_layer_step moe_layer_interval",
    "shared": "shared_expert_intermediate_size moe_shared_expert_intermediate_size "
    "shared_intermediate_size",
    "shared_experts": "n_shared_experts moe_num_shared_experts num_shared_expert",
    "mamba_heads": "mamba_num_heads mamba_n_heads",
    "mamba_head_dim": "mamba_head_dim mamba_d_head",
    "mamba_groups": "mamba_n_groups n_groups",
    "mamba_state": "mamba_d_state ssm_state_size",
}
"""What families call the same number; the first that is there counts."""
_PLAIN = {
    *("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "codegen", "opt", "bloom", "mpt"),
    *("falcon", "phi", "starcoder2", "nemotron", "nemotron_h"),
    *("bert", "roberta", "xlm-roberta", "electra", "distilbert"),
}
"""Families whose MLPs have no gate."""
_TIED = "gemma", "cohere", "modernbert"  # what other families begin with whose weights are tied
_PARTS = "text_config", "attn_config", "ffn_config"  # of which some configurations consist
_MOST_LAYERS = 2_000  # published ones have up to 1,000 (DeepNet); a table has one stage a layer
_PLACES = "layer_types", "hybrid_override_pattern"  # where a hybrid places its Mamba layers
_LISTS = "layer_types", "mlp_only_layers"
_WINDOWED = "sliding_attention", "chunked_attention"
_WHOLE_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Of how many layers one has no window, by family, where its configurations may not say so."""
_DESCRIBE = "of which there is no shape here: describe it as a pipekit.performance.shapes.Shape"


def from_config(path: str | os.PathLike[str]) -> Shape:
    """Return the shape that a ``config.json`` describes; of an image model's, that of its text.

    A ValueError names what it lacks, or the layers that no shape describes.
    """
    config = read_json(path, dict[str, Any], "a model's config.json")
    for part in map(config.get, _PARTS):
        config |= part if isinstance(part, dict) else {}
    for name in _LISTS:
        if not isinstance(config.get(name) or [], list):
            raise ValueError(f"{path}: {name} is {config[name]!s:.40}: give a list")

    def number(what: str, default: int | None = None) -> int:
        names = _NAMES.get(what, what).split()
        name = next((each for each in names if config.get(each)), None)
        found = default if name is None else config[name]
        if found is None:
            raise ValueError(f"{path} has none of {', '.join(names)}: add it")
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise ValueError(f"{path}: {name} is {found!s:.40}: give one whole number")
        return found

    kind = str(config.get("model_type", "own"))
    if config.get("is_encoder_decoder"):
        raise ValueError(f"{path} has an encoder and a decoder, {_DESCRIBE}")
    if "projection_dim" in config and "vision_config" in config:
        raise ValueError(f"{path} has an encoder of text and one of images, {_DESCRIBE}")
    if "num_hidden_groups" in config:
        raise ValueError(f"{path} has layers that share their weights, {_DESCRIBE}")
    mixers = [name for name in (kind, *config) if "mamba" in name or "linear_num" in name]
    if mixers and not any(map(config.get, _PLACES)):
        raise ValueError(
            f"{path} has layers without attention ({mixers[0]}), and no {' or '.join(_PLACES)} "
            f"that places them, {_DESCRIBE}"
        )
    if any("expert" in name and config[name] for name in config):
        number("experts")  # a mixture that is not known as one would be a small model
    if (layers := number("layers", 0)) > _MOST_LAYERS:
        raise ValueError(f"{path} has {layers} layers: give one of at most {_MOST_LAYERS}")
    gated = kind not in _PLAIN
    known, blocks = _layers(config, number, gated), _blocks(config, number)
    kinds = config.get("layer_types")
    if kinds and len(kinds) < number("layers"):
        raise ValueError(f"{path} has layer_types of {len(kinds)} of {number('layers')} layers")
    if unknown := {name for block in blocks for name in block} - {*known}:
        raise ValueError(f"{path} has layers of {', '.join(map(repr, unknown))}, {_DESCRIBE}")
    return Shape(
        str(config.get("_name_or_path") or kind),
        number("hidden"),
        number("vocabulary"),
        tuple(Counter(tuple(known[name] for name in block) for block in blocks).items()),
        tied=bool(config.get("tie_word_embeddings", not gated or kind.startswith(_TIED))),
        predictors=number("num_nextn_predict_layers", 0),
        token_width=number("token_width", 0) or None,
    )


def _layers(config: Mapping[str, Any], number: Callable[..., int], gated: bool) -> dict[str, Layer]:
    """Return the layers by the names of ``layer_types``, or letters of a hybrid's pattern."""
    heads, hidden = number("heads"), number("hidden")
    one_key = config.get("multi_query") and not config.get("new_decoder_architecture")  # Falcon
    kv_heads = 1 if one_key else number("kv_heads", heads)
    attention = Attention(heads, kv_heads, number("head_dim", hidden // heads))
    whole: Layer = attention
    found: dict[str, Layer] = {}
    if window := number("sliding_window", number("attention_chunk_size", 0)):
        found |= dict.fromkeys(_WINDOWED, replace(attention, window=window))
    if latent := number("kv_lora_rank", 0):
        sizes = number("v_head_dim"), number("qk_rope_head_dim")
        whole = LatentAttention(heads, number("q_lora_rank", 0), latent, *sizes)
    found |= dict.fromkeys(("full_attention", "attention", "*"), whole)
    if number("mamba_heads", 0):
        names = "mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state"
        found |= dict.fromkeys(("mamba", "M"), Mamba(*map(number, names)))
    width = number("width", 4 * hidden)
    found["-"] = MLP(width, gated)
    if experts := number("experts", 0):
        own, kind = number("expert_width", width), str(config.get("model_type"))
        shared = number("shared", own * number("shared_experts", int(kind.startswith("llama4"))))
        fused = kind != "gpt_oss"
        # Some experts of LongCat's router return what they get, which takes no time.
        active = number("active", 2) * experts // (experts + number("zero_expert_num", 0))
        found["E"] = Experts(experts, active, own, gated, shared, fused_activation=fused)
    return found


def _blocks(config: Mapping[str, Any], number: Callable[..., int]) -> list[tuple[str, ...]]:
    if pattern := config.get("hybrid_override_pattern"):
        return [(letter,) for letter in str(pattern)]
    if config.get("model_type") == "longcat_flash":  # a mixture beside two of all else
        return [("attention", "-", "attention", "-", "E")] * number("num_layers")
    layers = range(number("layers"))
    windowed = config.get("sliding_window") and config.get("use_sliding_window") is not False
    usual_whole = _WHOLE_EVERY.get(str(config.get("model_type")), len(layers) + 1)
    whole = number("sliding_window_pattern", usual_whole) if windowed else 1
    usual = [_WINDOWED[0] if (layer + 1) % whole else "full_attention" for layer in layers]
    step = number("sparse_step", 1)
    sparse = {*layers[number("dense_before", step - 1) :: step]}
    sparse = sparse - {*(config.get("mlp_only_layers") or ())} if number("experts", 0) else set()
    kinds = config.get("layer_types") or usual
    pairs = zip(layers, kinds, strict=False)
    return [(str(kind), "E" if layer in sparse else "-") for layer, kind in pairs]
