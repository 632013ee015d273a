"""A model built from its config alone: without weights for tracing, with random ones for a proof."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from mmap import MAP_PRIVATE, mmap
from pathlib import Path

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from stages.command import Refusal
from stages.sources.quantised import quantised

SEED = 20


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
    if reason := quantised(config):
        raise Refusal(reason)
    try:
        # Through a file, as it came: transformers writes infinities in a way of its own.
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            ready = CONFIG_MAPPING[kind].from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the config class of any type may raise anything on a wrong value
        raise Refusal(f"config.json is not one of {kind}: {' '.join(str(error).split())}") from None
    if type(ready) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise Refusal(f"model type {kind!r} has no causal language model in {version}: {_instead(ready)}")
    ready.use_cache = False
    return ready


def senses(config: transformers.PreTrainedConfig) -> list[str]:
    """What a model takes in besides text: `["images"]`, `["images", "sound"]`."""
    named = " ".join(config.sub_configs)
    words = {"images": ("vision", "image", "vit"), "sound": ("audio", "speech")}
    return [sense for sense, names in words.items() if any(name in named for name in names)]


def _instead(config: transformers.PreTrainedConfig) -> str:
    """Why there is no lens, and what to do where a part of the model has one."""
    if senses(config):
        return f"it also takes {' and '.join(senses(config))}; save its language model as a checkpoint of its own"
    return "no logit lens over a causal stream"


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
    """The causal language model of a config, in eval mode, fp32, its parameters zeros that take no memory.

    Args:
        config: the content of config.json.
        code: a folder with it and with the code that it asks for, which is run; None to run none.
    """
    ready = configure(config, code)
    with warnings.catch_warnings(), init_empty_weights(include_buffers=False):
        warnings.simplefilter("ignore")
        model = _from_config(ready, code)
    model.tie_weights()
    _allocate(model)
    return model.eval()


def _allocate(model: nn.Module) -> None:
    """Zeros for parameters on the meta device: pages that the system hands out only when they are written.

    On a device of their own, parameters could not be mixed with the buffers that a model computes for itself.
    """
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.device.type != "meta":
                continue
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(_zeros(parameter.shape, parameter.dtype), requires_grad=False)
            module._parameters[name] = made[id(parameter)]


def _zeros(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """From the system itself: an allocator may hand out pages that were used before, and must write zeros there."""
    size = shape.numel() * dtype.itemsize
    pages = torch.frombuffer(mmap(-1, max(1, size), flags=MAP_PRIVATE), dtype=torch.uint8)
    return pages[:size].view(dtype).view(shape)


@torch.no_grad()
def build_random(config: dict, code: Path | None = None) -> PreTrainedModel:
    """The same model with random weights, so that a wrong formula shows: norms away from 1, biases away from 0."""
    torch.manual_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = _from_config(configure(config, code), code).eval()
    return perturb(model)


@torch.no_grad()
def perturb(model: PreTrainedModel, seed: int = SEED) -> PreTrainedModel:
    """Move every weight at random: vectors by 0.2, matrices by as much as keeps a row's product near 1.

    Buffers too, unless they hold a pattern: that belongs to a formula.
    """
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict(keep_vars=True).values():
        plain = isinstance(tensor, nn.Parameter) or bool((tensor == tensor.flatten()[:1]).all())
        if tensor.is_floating_point() and plain:
            size = 0.2 if tensor.dim() < 2 else min(0.2, 0.7 / math.sqrt(tensor.shape[-1]))
            tensor.add_(size * torch.randn(tensor.shape, generator=generator))
    return model


def _from_config(config: transformers.PreTrainedConfig, code: Path | None) -> PreTrainedModel:
    remote = {} if code is None else {"trust_remote_code": True}
    try:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, **remote)
    except Exception as error:  # the model of any type, and a checkpoint's own code, may raise anything
        whose = f"{config.model_type}: transformers" if code is None else "the checkpoint's own code"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise Refusal(f"{whose} gives no causal language model for this config ({reason})") from None
