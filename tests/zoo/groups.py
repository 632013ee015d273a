"""What sort of model a type is, as far as transformers' own lists tell."""

from __future__ import annotations

from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

GROUPS = {
    "decoder": "Decoders",
    "multimodal": "Models that also see or hear, and drafters for them",
    "seq2seq": "Decoders that read an encoder",
    "encoder": "Encoders with a language head",
}
# In no list that would tell, or in one that misleads.
_KNOWN = {
    "bert-generation": "encoder",
    "gemma4_assistant": "multimodal",
    "gemma4_unified_assistant": "multimodal",
    "reformer": "decoder",
    "trocr": "seq2seq",
    "xlnet": "encoder",
}
_SENSES = ("vision", "audio", "image", "video")


def group(kind: str) -> str:
    """One of GROUPS."""
    if kind in _KNOWN:
        return _KNOWN[kind]
    config = CONFIG_MAPPING[kind]
    if any(sense in part for part in config.sub_configs for sense in _SENSES):
        return "multimodal"
    if kind in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES or getattr(config, "is_encoder_decoder", False):
        return "seq2seq"
    if kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "encoder"
    return "multimodal" if kind in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else "decoder"
