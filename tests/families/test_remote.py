"""Checkpoints with code of their own, as the family that has their operations: parameters as published, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.contract.errors import NotModelled
from estimator.families import count
from estimator.families.remote import REMOTE
from estimator.specs.resolve import resolve

LING: dict[str, Any] = {
    "model_type": "bailing_moe",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 157184,
    "max_position_embeddings": 32768,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
    "score_function": "sigmoid",
    "use_bias": False,
    "use_qkv_bias": False,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
CONFIGS: list[tuple[dict[str, Any], int]] = [
    (
        {
            "model_type": "internvl_chat",
            "downsample_ratio": 0.5,
            "ps_version": "v2",
            "max_dynamic_patch": 12,
            "template": "internvl2_5",
        }
        | {
            "llm_config": {"model_type": "internlm2", "bias": False, "hidden_size": 4096, "intermediate_size": 14336}
            | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92553}
        }
        | {
            "vision_config": {
                "model_type": "intern_vit_6b",
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
            }
            | {"num_attention_heads": 16, "image_size": 448, "patch_size": 14, "qkv_bias": True, "qk_normalization": False}
        },
        8_075_365_376,
    ),
    (
        {"model_type": "internlm2", "bias": False, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92544, "max_position_embeddings": 32768},
        7_737_708_544,
    ),
    (
        {"model_type": "exaone", "hidden_size": 2560, "intermediate_size": 7168, "num_layers": 30, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 80, "vocab_size": 102400, "tie_word_embeddings": True},
        2_405_327_360,
    ),
    (
        {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "no_bias": True}
        | {"num_attention_heads": 32, "kv_channels": 128, "vocab_size": 151936, "seq_length": 8192},
        7_721_324_544,
    ),
    (
        {"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_hidden_layers": 40, "scale_emb": 12}
        | {"num_attention_heads": 36, "num_key_value_heads": 36, "vocab_size": 122753},
        2_724_880_896,
    ),
    (
        {"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "vocab_size": 125696, "model_max_length": 4096, "z_loss_weight": 0},
        7_505_973_248,
    ),
    (
        {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 28, "num_attention_heads": 32}
        | {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128, "padded_vocab_size": 65024}
        | {"seq_length": 8192, "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True},
        6_243_584_000,
    ),
    (LING, 16_255_638_528),  # and a router's correction bias of 256 in each of 19 layers, which is a buffer
]


@pytest.mark.parametrize(("config", "published"), CONFIGS, ids=[config["model_type"] for config, _ in CONFIGS])
def test_it_has_the_published_parameters_and_says_whose_code_it_is(config: dict[str, Any], published: int) -> None:
    found = resolve(config, allow_files=False)
    assert count(found.spec) == published
    assert found.spec.model_type == REMOTE[config["model_type"]].like
    assert any(f"{config['model_type']} is code of its checkpoint's own" in said for said in found.assumptions)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"score_function": "softmax"}, "Ling 2.0's is"),
        ({"use_qk_norm": False}, "Ling 2.0's is"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1 is not modelled for bailing_moe"),
    ],
)
def test_another_model_of_the_type_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(NotModelled, match=said):
        resolve(LING | changed, allow_files=False)
