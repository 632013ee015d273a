"""Running graphs in ONNX Runtime: a shipped file, or a graph whose float32 weights come from memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from stages.files import read_json

PROVIDERS = ["CPUExecutionProvider"]


def _options(plain: bool = False) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # The default, a spinning pool, burns CPU between two small runs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def open_session(file: Path) -> ort.InferenceSession:
    """A session on a shipped file, with ONNX Runtime's usual optimisations."""
    return ort.InferenceSession(str(file), _options(), providers=PROVIDERS)


def check_loads(file: Path) -> None:
    """Load a file once as it is, without optimising it: that needs little memory and says whether it is whole."""
    ort.InferenceSession(str(file), _options(plain=True), providers=PROVIDERS)


def open_f32(folder: Path, values: dict[str, np.ndarray]) -> ort.InferenceSession:
    """A session on a graph without weights, given float32 weights in memory.

    Args:
        folder: graph.onnx and weights.json, as `split` makes them.
        values: the parameters by name, float32; they must outlive the session.
    """
    options = _options()
    names, arrays = [], []
    for name, slot in read_json(folder / "weights.json")["weights"].items():
        value = values[slot["parameter"]]
        names.append(name)
        arrays.append(ort.OrtValue.ortvalue_from_numpy(np.asarray(value.T if slot["transpose"] else value, order="C")))
    options.add_external_initializers(names, arrays)
    return ort.InferenceSession(str(folder / "graph.onnx"), options, providers=PROVIDERS)
