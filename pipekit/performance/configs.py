"""Shapes from the ``config.json`` of a model on Hugging Face: one stack of transformer blocks."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipekit.performance.shapes import (
    MLP,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mamba,
    Shape,
)
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
    "own": ("moe_intermediate_size",),
    "shared": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    "mamba_heads": ("mamba_num_heads", "mamba_n_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "mamba_groups": ("mamba_n_groups", "n_groups"),
    "mamba_state": ("mamba_d_state", "ssm_state_size"),
}
"""What families call the same number."""
_TEXT = "text_config", "llm_config", "language_config"
"""Where models of several kinds of input have that of their text, nearly all of their weights."""
_PLAIN = {
    *("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "codegen", "opt", "bloom", "mpt"),
    *("falcon", "phi", "starcoder2", "nemotron", "nemotron_h"),
    *("bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert"),
}
"""Families whose MLPs have no gate."""
_WINDOWED = "sliding_attention", "chunked_attention"
_ATTENTION = "full_attention", "attention", *_WINDOWED


def from_config(path: str | os.PathLike[str]) -> Shape:
    """Return the shape that a ``config.json`` describes; of an image model's, that of its text.

    Raises:
        ValueError: it is no JSON, or lacks a number, or has layers that no shape describes; the
            message names them.
    """
    whole = read_json(path, dict[str, Any], "a model's config.json")
    inner = (whole[name] for name in _TEXT if isinstance(whole.get(name), dict))
    config = _Config(path, whole | next(inner, {}))
    if config.get("is_encoder_decoder"):
        raise ValueError(f"{path} has an encoder and a decoder, {_DESCRIBE}")
    kind = str(config.get("model_type", "own"))
    gated = kind not in _PLAIN
    return Shape(
        str(config.get("_name_or_path") or kind),
        config.number("hidden"),
        config.number("vocabulary"),
        tuple(Counter(config.blocks(gated)).items()),
        tied=bool(config.get("tie_word_embeddings", not gated or kind.startswith("gemma"))),
        predictors=config.number("num_nextn_predict_layers", 0),
    )


_DESCRIBE = "of which there is no shape here: describe it as a pipekit.performance.shapes.Shape"


class _Config(dict[str, Any]):
    """The entries of a file, and the layers that they describe."""

    def __init__(self, path: str | os.PathLike[str], entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._path = path

    def number(self, what: str, default: int | None = None) -> int:
        """Return a whole number by any of its names."""
        names = _NAMES.get(what, (what,))
        name, found = next(
            ((name, self[name]) for name in names if self.get(name)), (names[0], default)
        )
        if found is None:
            raise ValueError(f"{self._path} has none of {', '.join(names)}: add it")
        if not isinstance(found, int) or found < 0:
            raise ValueError(f"{self._path}: {name} is {found!r}: give one whole number")
        return found

    def blocks(self, gated: bool) -> list[tuple[Layer, ...]]:
        """Return the layers of each block, in their order."""
        mlp, mixture = MLP(self.number("width", 4 * self.number("hidden")), gated), None
        if self.number("experts", 0):
            mixture = self._experts(gated)
        if pattern := self.get("hybrid_override_pattern"):  # a layer a block, by its letter
            kinds = {"M": self._mamba(), "*": self._attention(), "-": mlp, "E": mixture or mlp}
            if unknown := {*pattern} - {*kinds}:
                raise ValueError(f"{self._path} has layers {unknown}, {_DESCRIBE}")
            return [(kinds[each],) for each in pattern]
        layers = self.number("layers")
        kinds = self.get("layer_types") or self._windows(layers)
        known = {kind: self._mixer(kind) for kind in {*kinds}}
        sparse = self._sparse(layers) if mixture else set()
        return [
            (known[kind], mixture if mixture and number in sparse else mlp)
            for number, kind in enumerate(kinds[:layers])
        ]

    def _windows(self, layers: int) -> list[str]:
        """Return the kinds of attention where each layer's is not named."""
        if not self.get("sliding_window") or self.get("use_sliding_window") is False:
            return ["full_attention"] * layers
        whole = self.number("sliding_window_pattern", layers + 1)
        return [_WINDOWED[0] if (n + 1) % whole else "full_attention" for n in range(layers)]

    def _sparse(self, layers: int) -> set[int]:
        """Return which layers are mixtures: from one on, every so many, or all but some."""
        step = self.number("decoder_sparse_step", self.number("interleave_moe_layer_step", 1))
        found = range(self.number("first_k_dense_replace", step - 1), layers, step)
        return {*found} - {*(self.get("mlp_only_layers") or ())}

    def _mixer(self, kind: str) -> Layer:
        if kind == "mamba":
            return self._mamba()
        if kind not in _ATTENTION:
            raise ValueError(f"{self._path} has layers of {kind!r}, {_DESCRIBE}")
        return self._attention(windowed=kind in _WINDOWED)

    def _attention(self, *, windowed: bool = False) -> Layer:
        heads, hidden = self.number("heads"), self.number("hidden")
        if latent := self.number("kv_lora_rank", 0):
            sizes = self.number("v_head_dim"), self.number("qk_rope_head_dim")
            return LatentAttention(heads, self.number("q_lora_rank", hidden), latent, *sizes)
        window = self.number("sliding_window", self.number("attention_chunk_size", 0))
        return Attention(
            heads,
            self.number("kv_heads", 1 if self.get("multi_query") else heads),
            self.number("head_dim", hidden // heads),
            window=(window or None) if windowed else None,
        )

    def _mamba(self) -> Layer:
        names = "mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state"
        return Mamba(*map(self.number, names))

    def _experts(self, gated: bool) -> Experts:
        own = self.number("own", self.number("width"))
        return Experts(
            self.number("experts"),
            self.number("active", 2),
            own,
            gated,
            self.number("shared", own * self.number("n_shared_experts", 0)),
            fused_activation=self.get("model_type") != "gpt_oss",
        )
