"""Shapes from the ``config.json`` of a model on Hugging Face: dense transformers and mixtures."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipekit.performance.shapes import MLP, Attention, Block, Experts, LatentAttention, Shape

_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "width": ("intermediate_size", "n_inner", "ffn_dim"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
}
"""What families call the same number."""
_PLAIN = {"gpt2", "gpt_neo", "gpt_neox", "opt", "bert", "bloom"}
"""Families whose MLPs have no gate."""


def from_config(path: str | os.PathLike[str]) -> Shape:
    """Return the shape that a ``config.json`` describes.

    Raises:
        ValueError: it is no JSON, or lacks a number; the message names it.
    """
    try:
        config = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a config.json: {error}") from None
    hidden, layers = _number(config, "hidden", path), _number(config, "layers", path)
    kind = str(config.get("model_type", "own"))
    gated = kind not in _PLAIN
    width = _number(config, "width", path, 4 * hidden)
    mixer = _attention(config, path, hidden)
    dense: Block = mixer, MLP(width, gated)
    experts = _number(config, "experts", path, 0)
    first = int(config.get("first_k_dense_replace", 0)) if experts else layers
    blocks = [(dense, first)]
    if experts:
        own = int(config.get("moe_intermediate_size") or width)
        shared = own * int(config.get("n_shared_experts") or 0)
        active = int(config.get("num_experts_per_tok") or config.get("experts_per_token") or 2)
        blocks.append(((mixer, Experts(experts, active, own, gated, shared)), layers - first))
    return Shape(
        str(config.get("_name_or_path") or kind),
        hidden,
        int(config["vocab_size"]),
        tuple((block, count) for block, count in blocks if count),
        tied=bool(config.get("tie_word_embeddings", not gated)),
        predictors=int(config.get("num_nextn_predict_layers") or 0),
    )


def _attention(
    config: Mapping[str, Any], path: str | os.PathLike[str], hidden: int
) -> Attention | LatentAttention:
    heads = _number(config, "heads", path)
    if config.get("kv_lora_rank"):
        return LatentAttention(
            heads,
            int(config.get("q_lora_rank") or hidden),
            int(config["kv_lora_rank"]),
            int(config["v_head_dim"]),
            int(config["qk_rope_head_dim"]),
        )
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return Attention(heads, kv_heads, int(config.get("head_dim") or hidden // heads))


def _number(
    config: Mapping[str, Any],
    what: str,
    path: str | os.PathLike[str],
    default: int | None = None,
) -> int:
    found = next((config[name] for name in _NAMES[what] if config.get(name)), default)
    if found is None:
        raise ValueError(f"{path} has none of {', '.join(_NAMES[what])}: add it")
    return int(found)
