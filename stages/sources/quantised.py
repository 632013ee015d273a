"""Checkpoints whose weights are stored in fewer bits."""

from __future__ import annotations

from typing import Any


def quantised(config: dict[str, Any]) -> str | None:
    """Why a config's weights can't be read here and what to do about it; None where they are not quantised."""
    if "quantization_config" not in config:
        return None
    settings = config["quantization_config"]
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return (
        f"config.json asks for quantised weights{f' ({method})' if method else ''}: dequantise them first, as with "
        "AutoModelForCausalLM.from_pretrained(...).dequantize().save_pretrained(...)"
    )
