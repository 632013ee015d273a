"""How long the sequences are on which a model is traced and proven."""

from __future__ import annotations

from transformers import PreTrainedConfig

# Names of what a config says of how far attention looks, and of the pieces in which recurrent layers work.
WINDOWS = (
    "sliding_window",
    "sliding_window_size",
    "attention_window_size",
    "attention_chunk_size",
    "local_attention",
    "window_size",
    "keep_window_size",
    "index_topk",
)
CHUNKS = ("chunk_size", "mamba_chunk_size", "compress_rates")
# Gated delta rules work in pieces of 64 that no config names.
CHUNK = 64
# What is longer than this is not tried.
LONGEST = 2048


def _largest(config: PreTrainedConfig, names: tuple[str, ...], least: int) -> int:
    found = [getattr(config.get_text_config(), name, None) for name in names]
    found += [value for values in found if isinstance(values, dict) for value in values.values()]
    return max([least, *(value for value in found if isinstance(value, int))])


def positions(config: PreTrainedConfig) -> int | None:
    """How many tokens a model can read; None where no number is named."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    return next((value for name in names if (value := getattr(config.get_text_config(), name, None))), None)


def traced(config: PreTrainedConfig) -> int:
    """Several chunks and a part of one: one token, one chunk or whole chunks would be taken for a constant."""
    return min(2 * _largest(config, CHUNKS, CHUNK) + 7, positions(config) or LONGEST)


def beyond(config: PreTrainedConfig) -> int:
    """Longer than any window and than two chunks, as far as positions and patience go."""
    longest = max(_largest(config, WINDOWS, 0) + 9, 3 * _largest(config, CHUNKS, CHUNK) + 2)
    return min(longest, positions(config) or LONGEST, LONGEST)
