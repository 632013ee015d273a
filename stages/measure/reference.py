"""The reference: the checkpoint as transformers itself loads it, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from stages.anatomy.stored import canonical_names
from stages.command import Refusal


def load_reference(folder: Path, pickled: bool = False, remote_code: bool = False) -> PreTrainedModel:
    """The model of a checkpoint folder, float32, eval mode.

    Args:
        folder: config and weights; transformers reads both itself, independently of our plan and record.
        pickled: read pickles, with torch's loader for weights alone; safetensors otherwise.
        remote_code: run the code in the folder.

    Raises:
        Refusal: transformers would fill missing or mismatched weights with random numbers.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        use_safetensors=not pickled,
        trust_remote_code=remote_code,
        local_files_only=True,
        output_loading_info=True,
    )
    wrong = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise Refusal(f"transformers finds no weights for {', '.join(map(str, wrong[:3]))} in {folder}")
    return model.eval()


def float32_values(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The parameters and saved buffers by canonical name, as arrays that share memory with the model."""
    names = canonical_names(model)
    return {names[name]: tensor.numpy() for name, tensor in model.state_dict().items()}
