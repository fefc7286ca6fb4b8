"""Shapes have the parameters that were published, and come from config.json files, too."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipekit.performance.configs import from_config
from pipekit.performance.shapes import MLP, Attention, Experts, LatentAttention, gpt, shape

GPT3 = shape("gpt3-175b")


def test_gpt_has_the_parameters_of_its_paper() -> None:
    """12 l h^2 (1 + 13 / 12h + (V + s) / 12 l h), of which norms and positions are left out."""
    blocks = GPT3.dense_parameters
    assert blocks == 12 * 96 * 12288**2
    assert blocks + GPT3.vocabulary * GPT3.hidden == pytest.approx(175e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3-8b", 8.03, 7.5),
        ("llama3-70b", 70.6, 69.5),
        ("llama3.1-405b", 405.8, 403.7),
        ("mixtral-8x7b", 46.7, 12.7),
        ("mixtral-8x22b", 140.6, 39.0),
        ("qwen3-32b", 32.8, 32.0),
        ("qwen3-30b-a3b", 30.5, 3.0),
        ("qwen3-235b-a22b", 235, 21.5),
        ("nemotronh-56b", 56.3, 55.3),
        ("deepseek-v3", 671, 37),
        ("kimi-k2", 1026, 32),
        ("gpt-oss-20b", 20.9, 3.6),
        ("gpt-oss-120b", 116.8, 5.1),
    ],
)
def test_models_have_the_published_parameters(name: str, billions: float, active: float) -> None:
    known = shape(name)
    tables = (1 if known.tied else 2) * known.vocabulary * known.hidden
    every = known.dense_parameters + known.expert_parameters + tables
    assert every / 1e9 == pytest.approx(billions, rel=0.02)
    assert known.active_parameters / 1e9 == pytest.approx(active, rel=0.07)


HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8}
HEADLESS = {"model_type": "llama", "num_hidden_layers": 32, "tie_word_embeddings": False}
HEADLESS |= {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}
LLAMA = HEADLESS | HEADS


def written(folder: Path, config: dict[str, object]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config), "utf-8-sig")  # as some editors write it
    return path


def test_a_dense_config_is_the_published_shape(tmp_path: Path) -> None:
    found, known = from_config(written(tmp_path, LLAMA)), shape("llama3-8b")
    assert found.blocks == known.blocks
    assert (found.hidden, found.vocabulary, found.tied) == (4096, 128256, False)


def test_gpt2_has_names_of_its_own_and_no_gate(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    found = from_config(written(tmp_path, config))
    assert found.blocks == shape("gpt2").blocks
    assert found.tied


def test_embedding_and_head_may_be_narrower(tmp_path: Path) -> None:
    """OPT-350m's: 512 numbers a token, 331e6 weights, with positions and two projections."""
    config = {"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096}
    config |= {"num_attention_heads": 16, "vocab_size": 50272, "word_embed_proj_dim": 512}
    found = from_config(written(tmp_path, config))
    assert found.active_parameters / 1e6 == pytest.approx(331 - 2 - 1, rel=0.002)


def test_a_mixture_with_latent_attention(tmp_path: Path) -> None:
    """DeepSeek-V3's config.json has these names and numbers."""
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "tie_word_embeddings": False}
    config |= {"hidden_size": 7168, "intermediate_size": 18432, "vocab_size": 129280}
    config |= {"num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512}
    config |= {"qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1}
    config |= {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1}
    config |= {"moe_intermediate_size": 2048, "first_k_dense_replace": 3}
    known = shape("deepseek-v3")
    found = from_config(written(tmp_path, config))
    assert found.blocks == known.blocks
    assert found.predictors == 1
    kinds = [type(layer) for block, _ in found.blocks for layer in block]
    assert kinds == [LatentAttention, MLP, LatentAttention, Experts]


def test_a_model_has_at_least_a_block_and_a_head_a_number() -> None:
    with pytest.raises(ValueError, match="of 0 numbers: each must be at least 1"):
        gpt("too narrow", 3, 16, 2)
    with pytest.raises(ValueError, match="has 0 blocks: give it at least one"):
        gpt("none", 64, 4, 0)


def test_queries_of_latent_attention_need_not_be_compressed(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite's null; its weights are q_proj, kv_a, kv_b and o_proj."""
    config = LLAMA | {"hidden_size": 2048, "num_attention_heads": 16, "q_lora_rank": None}
    config |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}
    (attention, _), _ = from_config(written(tmp_path, config)).blocks[0]
    counted = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert attention.parameters(2048) == counted


def test_a_layer_of_longcat_has_two_attentions_and_mlps(tmp_path: Path) -> None:
    """560e9 parameters, about 27e9 of them active (LongCat-Flash's report, arXiv 2509.01322)."""
    config = {"model_type": "longcat_flash", "num_layers": 28, "vocab_size": 131072}
    config |= {"hidden_size": 6144, "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048}
    config |= {"num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512}
    config |= {"qk_rope_head_dim": 64, "v_head_dim": 128, "zero_expert_num": 256}
    found = from_config(written(tmp_path, config | {"n_routed_experts": 512, "moe_topk": 12}))
    every = found.dense_parameters + found.expert_parameters + 2 * 131072 * 6144
    assert every / 1e9 == pytest.approx(560, rel=0.01)
    assert found.active_parameters / 1e9 == pytest.approx(27, rel=0.02)


MIXTURE = {"num_experts": 8, "moe_intermediate_size": 512}
PATTERN = {"sliding_window": 1024, "sliding_window_pattern": 6}
HYBRID = {"mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128}


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        (PATTERN, {"Attention 1024, MLP": 27, "Attention, MLP": 5}),
        (PATTERN | {"use_sliding_window": False}, {"Attention, MLP": 32}),
        ({"model_type": "gemma2", "sliding_window": 4096},
         {"Attention 4096, MLP": 16, "Attention, MLP": 16}),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16} | PATTERN,
         {"Attention 1024, MLP": 16, "Attention, MLP": 16}),
        (MIXTURE | {"decoder_sparse_step": 2}, {"Attention, MLP": 16, "Attention, Experts": 16}),
        (MIXTURE | {"mlp_only_layers": [0, 5]}, {"Attention, MLP": 2, "Attention, Experts": 30}),
        (HYBRID | {"hybrid_override_pattern": "M-M*-M-"}, {"Mamba": 3, "MLP": 3, "Attention": 1}),
        ({"text_config": {"num_hidden_layers": 3}}, {"Attention, MLP": 3}),
    ],
)  # fmt: skip
def test_layers_of_each_family(tmp_path: Path, more: dict[str, Any], kinds: dict[str, int]) -> None:
    def told(layer: Any) -> str:
        window = getattr(layer, "window", None)
        return f"{type(layer).__name__} {window}" if window else type(layer).__name__

    blocks = from_config(written(tmp_path, LLAMA | more)).blocks
    assert {", ".join(map(told, block)): count for block, count in blocks} == kinds


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"layer_types": ["linear_attention"] * 32}, "has layers of 'linear_attention'"),
        ({"layer_types": ["full_attention"] * 8}, "layer_types of 8 of 32 layers"),
        ({"is_encoder_decoder": True}, "an encoder and a decoder"),
        (MIXTURE | {"attn_layer_period": 8, "mamba_d_state": 16}, "mamba_d_state.*, and no"),
        ({"model_type": "mamba2"}, "layers without attention .mamba2., and no"),
        ({"num_experts_per_tok": 2}, "has none of num_experts, num_local_experts"),
        ({"num_attention_heads": [12, 12]}, "num_attention_heads is .*: give one whole number"),
        ({"layer_types": 5}, "layer_types is 5: give a list"),
        ({"layer_types": [["full"]] * 32}, "has layers of .*full"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers: give one of at most 2000"),
        ({"hybrid_override_pattern": 5}, "has layers of '5'"),
    ],
)
def test_what_has_no_shape_is_refused(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_config(written(tmp_path, LLAMA | more))


DBRX = {"moe_num_experts": 16, "moe_top_k": 4, "ffn_hidden_size": 512}
SCOUT = {"model_type": "llama4_text", "num_local_experts": 8, "num_experts_per_tok": 1}
SCOUT |= {"intermediate_size": 512, "intermediate_size_mlp": 2048}


@pytest.mark.parametrize(
    ("more", "kv_heads", "layer"),
    [
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 16}, 1, MLP(4096, False)),
        ({"ffn_config": DBRX, "attn_config": {"kv_n_heads": 4}}, 4, Experts(16, 4, 512)),
        ({"ffn_hidden_size": 512, "multi_query_group_num": 2}, 2, MLP(512)),
        (SCOUT, 16, Experts(8, 1, 512, shared_width=512)),
    ],
)
def test_families_name_things_otherwise(
    tmp_path: Path, more: dict[str, Any], kv_heads: int, layer: MLP | Experts
) -> None:
    sizes = {"d_model": 1024, "n_layers": 2, "n_heads": 16, "vocab_size": 100}
    (block, _), *_ = from_config(written(tmp_path, sizes | more)).blocks
    assert block == (Attention(16, kv_heads, 64), layer)


def test_a_config_that_lacks_a_number_is_refused_with_its_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has none of num_attention_heads, n_head"):
        from_config(written(tmp_path, HEADLESS))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="is not a model's config"):
        from_config(tmp_path / "broken.json")
