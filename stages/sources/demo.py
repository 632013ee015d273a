"""The demo run's architecture, known before it is trained: the plan traces it, stages/demo.py trains it."""

from __future__ import annotations

CONFIG = {
    "model_type": "gpt_neox",
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
