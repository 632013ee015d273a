"""models/<id>/dvc.yaml: the same few stages for every model, their values in params.json."""

from __future__ import annotations

# Checkpoints that the pipeline itself makes: DVC pins them, as a dependency of fetch; any others the plan pins.
DEMO = """\
  demo:
    wdir: ../..
    cmd: python -m stages.demo
    deps:
      - stages/demo.py
      - stages/sources/demo.py
    outs:
      - ${source.path}

"""
MADE_HERE = "        - ${source.path}\n"

TEMPLATE = """\
# Made by `make plan` from params.yaml; edits are overwritten.
vars:
  - params.json

stages:
@DEMO@  backbone:
    wdir: ../..
    cmd: python -m stages.backbone ${model}
    deps:
      - stages/backbone.py
      - stages/anatomy
      - stages/graph/lengths.py
      - stages/graph/limits.py
      - stages/graph/nodes.py
      - stages/graph/patches
      - stages/graph/routes.py
      - stages/graph/session.py
      - stages/graph/split.py
      - stages/graph/trace.py
      - stages/measure/compare.py
      - stages/measure/ladder.py
      - stages/measure/pair.py
      - stages/measure/proof.py
    params:
      - models/${model}/params.json:
          - blocks
          - code
          - config
    outs:
      - data/graphs/${model}/backbone

  lens:
    wdir: ../..
    cmd: python -m stages.lens ${model}
    deps:
      - stages/lens.py
      - stages/anatomy
      - stages/graph/lengths.py
      - stages/graph/limits.py
      - stages/graph/nodes.py
      - stages/graph/patches
      - stages/graph/routes.py
      - stages/graph/session.py
      - stages/graph/split.py
      - stages/graph/trace.py
      - stages/measure/compare.py
      - stages/measure/ladder.py
      - stages/measure/pair.py
      - stages/measure/proof.py
    params:
      - models/${model}/params.json:
          - blocks
          - code
          - config
    outs:
      - data/graphs/${model}/lens

  fetch:
    foreach: ${steps}
    do:
      wdir: ../..
      cmd: python -m stages.fetch ${model} ${item}
      deps:
        - stages/fetch.py
        - stages/sources
        - stages/tokens
        - data/graphs/${model}/backbone/parameters.json
@MADE_HERE@      params:
        - models/${model}/params.json:
            - allow_duplicates
            - config
            - folders.${item}
            - on_failure
            - revisions.${item}
            - source
            - tokenizer
      outs:
        - data/checkpoints/${model}/step${item}

  fp16:
    foreach: ${steps}
    do:
      wdir: ../..
      cmd: python -m stages.fp16 ${model} ${item}
      deps:
        - stages/fp16.py
        - stages/graph/fill.py
        - stages/graph/limits.py
        - stages/graph/nodes.py
        - data/checkpoints/${model}/step${item}
        - data/graphs/${model}
      outs:
        - data/onnx/${model}/step${item}

  fidelity:
    foreach: ${steps}
    do:
      wdir: ../..
      cmd: python -m stages.fidelity ${model} ${item}
      deps:
        - stages/fidelity.py
        - stages/anatomy
        - stages/graph/lengths.py
        - stages/graph/session.py
        - stages/measure
        - stages/tokens
        - ${prompts}
        - data/checkpoints/${model}/step${item}
        - data/graphs/${model}
        - data/onnx/${model}/step${item}
      params:
        - models/${model}/params.json:
            - code
            - gates
            - on_failure
            - probe
      outs:
        - data/fidelity/${model}/step${item}.json

  manifest:
    wdir: ../..
    cmd: python -m stages.manifest ${model}
    deps:
      - stages/manifest.py
      - stages/manifests
      - stages/tokens/files.py
      - stages/tokens/reading.py
      - data/checkpoints/${model}
      - data/fidelity/${model}
      - data/graphs/${model}
    params:
      - models/${model}/params.json:
          - allow_duplicates
          - axis
          - card
          - code
          - licence
          - on_failure
          - probe
          - source
          - steps
    outs:
      - data/onnx/${model}/manifest.json
      - data/onnx/${model}/tokenizer
      - data/metrics/${model}.json
"""


def pipeline(made_by_pipeline: bool) -> str:
    """The text of models/<id>/dvc.yaml."""
    text = TEMPLATE.replace("@DEMO@", DEMO if made_by_pipeline else "")
    return text.replace("@MADE_HERE@", MADE_HERE if made_by_pipeline else "")
