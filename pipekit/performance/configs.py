"""Shapes from the ``config.json`` of a model on Hugging Face: dense transformers and mixtures."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pipekit.performance.shapes import MLP, Attention, Block, Experts, LatentAttention, Shape
from pipekit.reading import read_json

_NAMES: Mapping[str, Sequence[str]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "width": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocab_size",),
    "active": ("num_experts_per_tok", "experts_per_token"),
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
    config = read_json(path, dict[str, Any], "a model's config.json")

    def number(what: str, default: int | None = None) -> int:
        names = _NAMES.get(what, (what,))
        found = next((config[name] for name in names if config.get(name)), default)
        if found is None:
            raise ValueError(f"{path} has none of {', '.join(names)}: add it")
        return int(found)

    hidden, layers, heads = number("hidden"), number("layers"), number("heads")
    kind = str(config.get("model_type", "own"))
    gated = kind not in _PLAIN
    width, experts = number("width", 4 * hidden), number("experts", 0)
    kv_heads, head_dim = number("num_key_value_heads", heads), number("head_dim", hidden // heads)
    mixer: Attention | LatentAttention = Attention(heads, kv_heads, head_dim)
    if latent := number("kv_lora_rank", 0):
        sizes = number("v_head_dim"), number("qk_rope_head_dim")
        mixer = LatentAttention(heads, number("q_lora_rank", hidden), latent, *sizes)
    first = number("first_k_dense_replace", 0) if experts else layers
    blocks: list[tuple[Block, int]] = [((mixer, MLP(width, gated)), first)]
    if experts:
        own = number("moe_intermediate_size", width)
        mixture = Experts(
            experts, number("active", 2), own, gated, own * number("n_shared_experts", 0)
        )
        blocks.append(((mixer, mixture), layers - first))
    return Shape(
        str(config.get("_name_or_path") or kind),
        hidden,
        number("vocabulary"),
        tuple((block, count) for block, count in blocks if count),
        tied=bool(config.get("tie_word_embeddings", not gated)),
        predictors=number("num_nextn_predict_layers", 0),
    )
