"""The demo run's architecture, known before it is trained."""

from __future__ import annotations

import json

CONFIG = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def full_config() -> dict:
    """The config.json that the demo's checkpoints will have."""
    from transformers import GPTNeoXConfig

    return json.loads(GPTNeoXConfig(**CONFIG).to_json_string())
