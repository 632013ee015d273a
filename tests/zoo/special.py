"""What a few types need beyond the common sizes: other arguments of their config class."""

_ALL_HEADS = {"num_key_value_heads": 4}
# A score is a sum over the heads of what is above zero: with few heads many are zero, and chance says which is best.
_MANY_INDEX_HEADS = {"index_n_heads": 32}
_DBRX_ROPE = {"rope_theta": 10000.0}

# Classes whose defaults are refused by themselves.
NO_DEFAULT: dict[str, dict] = {
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
        }
    },
}

SPECIAL: dict[str, dict] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
        },
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0} | _DBRX_ROPE,
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), _MANY_INDEX_HEADS),
    "deepseek_v2": {"num_experts_per_tok": 2},
    # The range is also what the rates of its residual interpolation are divided by: they must stay below 1.
    "dory": {
        "initializer_range": 0.2,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
    },
    "deepseek_v4": _MANY_INDEX_HEADS
    | {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}},
    # As in its checkpoints, tokens are left out only beyond the longest text: a token ties with itself.
    "doge": {"keep_window_size": 256},
    "dots3_note": _ALL_HEADS,
    "dots3_note_text": _ALL_HEADS | _MANY_INDEX_HEADS,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    # Two layers of each sort, of which the last two take keys and values of the first two.
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [128] * 4,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        "num_kv_shared_layers": 2,
    },
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    # The decay of linear attention vanishes in the last layer.
    "minimax": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_attn_alpha_factor": 1.2,
        "linear_attn_beta_factor": 0.9,
        "full_attn_alpha_factor": 1.1,
        "full_attn_beta_factor": 0.8,
        "mlp_alpha_factor": 1.3,
        "mlp_beta_factor": 0.7,
    },
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ngram_vocab_size_base": 64,
        "split_ngram_parts": 4,
    },
    "reformer": {"is_decoder": True, "axial_pos_shape": [16, 16], "axial_pos_embds_dim": [32, 32]},
    "roc_bert": {"pronunciation_vocab_size": 32, "shape_vocab_size": 32},
    "xlm": {"emb_dim": 64},
    "xmod": {"default_language": "en_XX"},
    # The layers that share weights: two of them, so that they do.
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "mamba_headdim": 16,
        "adapter_rank": 8,
        "hybrid_layer_ids": [1, 3],
    },
    # Loading sets the row of a padding token to zero, whatever the file holds.
    "youtu": {"pad_token_id": None},
    "zaya": {"num_experts_per_tok": 1},
}
