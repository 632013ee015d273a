"""A tiny config and a tiny random model of any causal type, from the defaults of its config class."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stages.anatomy.model import perturb
from tests.zoo.special import NO_DEFAULT, SPECIAL

VOCABULARY = 96
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
ENCODER_LAYERS = ("encoder_layers", "num_encoder_layers")

# What each name means, whatever the type: hidden size 64, 4 heads of 16, a window of 8, 4 experts of which 2 are used.
_SIZES = {
    64: "hidden_size hidden_size_global n_embd d_model embedding_size word_embed_proj_dim lru_width "
    "attention_hidden_size adapter_in_dim adapter_out_dim adapter_input_size",
    128: "intermediate_size ffn_hidden_size decoder_ffn_dim encoder_ffn_dim ffn_dim dff n_inner "
    "dense_intermediate_size intermediate_size_mlp mamba_d_ssm",
    32: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
    "shared_experts_intermediate_size moe_shared_expert_intermediate_size q_lora_rank o_lora_rank mamba_chunk_size "
    "chunk_size block_size hc_lowrank block_multiple_of",
    256: "max_position_embeddings n_positions n_ctx max_seq_len model_max_length original_max_position_embeddings",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
    "num_decoder_attention_heads num_encoder_attention_heads num_experts n_routed_experts num_local_experts "
    "moe_num_experts conv_kernel mamba_d_conv linear_conv_kernel_dim linear_num_value_heads linear_num_heads "
    "index_n_heads swa_num_attention_heads",
    2: "num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_k num_kv_heads "
    "linear_num_key_heads swa_num_key_value_heads encoder_layers num_encoder_layers",
    16: "head_dim qk_nope_head_dim v_head_dim kv_lora_rank linear_key_head_dim linear_value_head_dim linear_head_dim "
    "kv_channels mamba_d_head mamba_d_state state_size time_step_rank mamba_dt_rank ssm_state_size mamba_head_dim "
    "index_head_dim swa_head_dim attention_head_dim loop_gate_rank hidden_size_per_layer_input laurel_rank "
    "gated_norm_rank query_pre_attn_scalar rel_extent d_rel",
    8: "qk_rope_head_dim rotary_dim sliding_window attention_window_size sliding_window_size local_attention "
    "window_size attention_chunk_size keep_window_size mamba_n_heads mamba_num_heads n_mamba_heads index_topk",
    1: "n_group topk_group n_shared_experts num_shared_experts num_expert_group moe_num_shared_experts "
    "num_nextn_predict_layers n_groups mamba_n_groups first_k_dense_replace num_dense_layers",
    24: "qk_head_dim",
    VOCABULARY: "vocab_size vocab_size_per_layer_input unpadded_vocab_size decoder_vocab_size",
}
SIZES = {name: size for size, names in _SIZES.items() for name in names.split()}

# Off by default in some classes, on in the checkpoints that people use.
SCALES = {
    "embedding_multiplier": 1.3,
    "residual_multiplier": 0.8,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.7,
    "logit_scale": 0.3,
    "final_logit_softcapping": 5.0,
    "attn_logit_softcapping": 10.0,
}


# Multi-head latent attention has a key and a value for each head.
LATENT = {"num_key_value_heads": 4}


def kinds() -> list[str]:
    """Every entry of transformers' list of causal language models."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _per_layer(values: dict[str, Any], count: int) -> dict[str, list]:
    """The lists of a config with an entry for each layer; a list of all indices is none."""
    lists = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == count}
    return {key: value for key, value in lists.items() if value != list(range(count))}


def _latent_rope_only(values: dict[str, Any]) -> bool:
    """Whether `head_dim` is that of the rotary part of a head."""
    return values.get("head_dim") == values.get("qk_rope_head_dim")


def _chosen(value: list, picked: list[int]) -> list:
    """The entries of a per-layer list for some layers."""
    return [value[index] for index in picked]


def _shrunk(default: PreTrainedConfig) -> dict[str, Any]:
    """The arguments of a small config of the same class that keeps one layer of each sort."""
    values = default.to_dict()
    changed = {key: SIZES[key] for key, value in values.items() if key in SIZES and (value or key == "head_dim")}
    if "kv_lora_rank" in values:
        changed |= LATENT | {"head_dim": SIZES["qk_rope_head_dim" if _latent_rope_only(values) else "head_dim"]}
    changed |= {key: SCALES[key] for key in values if key in SCALES}
    layers = next((key for key in LAYERS if isinstance(values.get(key), int)), None)
    if layers:
        count = values[layers]
        lists = _per_layer(values, count)
        sorts: dict[tuple, int] = {}
        for index in range(count):
            sorts.setdefault(tuple(str(value[index]) for value in lists.values()), index)
        picked = sorted(sorts.values()) if len(sorts) > 1 else [0, 1]
        changed |= {key: len(picked) for key in LAYERS if isinstance(values.get(key), int)}
        changed |= {key: _chosen(value, picked) for key, value in lists.items()}
    for key in default.sub_configs:
        part = getattr(default, key, None)
        if isinstance(part, PreTrainedConfig):
            changed[key] = type(part)(**_shrunk(part) | SPECIAL.get(part.model_type, {})).to_dict()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if key in values:
            changed[key] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}[key]
    return changed


def tiny_config(kind: str) -> PreTrainedConfig:
    """A small config of a type, with what its type needs beyond the common sizes."""
    default = CONFIG_MAPPING[kind](**NO_DEFAULT.get(kind, {}))
    return type(default)(**_shrunk(default) | SPECIAL.get(kind, {}))


def tiny_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """A small perturbed model of a type, float32, eval mode."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(kind), dtype=torch.float32).eval()
    return perturb(model, seed)
