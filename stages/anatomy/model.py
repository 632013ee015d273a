"""A model built from its config alone, parameters on the meta device: no weights in memory, whatever its size."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from stages.command import Refusal


def configure(config: dict, code: Path | None = None) -> transformers.PreTrainedConfig:
    """The transformers config of a checkpoint's config.json.

    Args:
        config: its content.
        code: a folder with it and with the code that it asks for, which is run.

    Raises:
        Refusal: remote code, an unknown type, a type without a causal head, quantised weights, wrong values.
    """
    kind = config.get("model_type")
    version = f"transformers {transformers.__version__}"
    if "auto_map" in config:
        return _configure_remote(config, code)
    if kind not in CONFIG_MAPPING:
        raise Refusal(f"model type {kind!r} is not one that {version} knows")
    if "quantization_config" in config:
        raise Refusal("config.json asks for quantised weights: dequantise the checkpoint first")
    try:
        ready = CONFIG_MAPPING[kind].from_dict(dict(config))
    except Exception as error:  # the config class of any type may raise anything on a wrong value
        raise Refusal(f"config.json is not one of {kind}: {' '.join(str(error).split())}") from None
    if type(ready) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise Refusal(f"model type {kind!r} has no causal language model in {version}: no logit lens")
    ready.use_cache = False
    return ready


def _configure_remote(config: dict, code: Path | None) -> transformers.PreTrainedConfig:
    if code is None:
        raise Refusal(f"config.json asks for remote code ({', '.join(config['auto_map'])}): its source must allow it")
    if "AutoModelForCausalLM" not in config["auto_map"]:
        raise Refusal("config.json asks for remote code, but not for an AutoModelForCausalLM: no logit lens")
    try:
        ready = AutoConfig.from_pretrained(code, trust_remote_code=True, local_files_only=True)
    except Exception as error:  # it is the checkpoint's own code that runs here
        raise Refusal(f"the checkpoint's own code gives no config: {' '.join(str(error).split())}") from None
    ready.use_cache = False
    return ready


def build(config: dict, code: Path | None = None) -> PreTrainedModel:
    """The causal language model of a config, in eval mode, fp32, parameters on meta, computed buffers real.

    Args:
        config: the content of config.json.
        code: a folder with it and with the code that it asks for, which is run; None to run none.
    """
    ready = configure(config, code)
    with warnings.catch_warnings(), init_empty_weights(include_buffers=False):
        warnings.simplefilter("ignore")
        model = _from_config(ready, code)
    model.tie_weights()
    return model.eval()


def _from_config(config: transformers.PreTrainedConfig, code: Path | None) -> PreTrainedModel:
    if code is None:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    try:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=True)
    except Exception as error:  # it is the checkpoint's own code that runs here
        raise Refusal(f"the checkpoint's own code gives no model: {' '.join(str(error).split())}") from None


def _stored_name(model: PreTrainedModel, name: str, tensor: torch.Tensor) -> str:
    """The name under which `save_pretrained` writes a parameter (gpt_neox stores lm_head as embed_out)."""
    reverted = revert_weight_conversion(model, {name: tensor})
    return next(iter(reverted)) if len(reverted) == 1 else name


def parameters(model: PreTrainedModel) -> dict[str, dict]:
    """What a checkpoint of this model must hold.

    Returns:
        By the name of the parameter or saved buffer: `{"shape": [...], "names": [...]}`, the names being those
        that files may use for it, the likeliest first; tied weights are one entry with the names of all.
    """
    prefix = f"{model.base_model_prefix}."
    groups: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        groups.setdefault(id(tensor), []).append(name)
    found = {}
    for names in groups.values():
        candidates = []
        for name in names:
            for saved in (_stored_name(model, name, state[name]), name):
                bare = saved.removeprefix(prefix)
                candidates += [saved, bare] if bare != saved else [saved, prefix + saved]
        found[names[0]] = {"shape": list(state[names[0]].shape), "names": list(dict.fromkeys(candidates))}
    return found


def canonical_names(model: nn.Module) -> dict[str, str]:
    """For every name in the state dict, the first name of its tied group."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}
