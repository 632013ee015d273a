# Lensmill. `make help` lists the targets; each sets up what it needs.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
LIGHT := $(VENV)/.light
FULL := $(VENV)/.full

.DEFAULT_GOAL := help
.PHONY: help setup plan demo repro status push pull verify show plots test lint bench zoo

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

# What is needed to pull and verify: no torch.
$(LIGHT): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(FULL): $(LIGHT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[trace,dev]'
	@touch $@

setup: $(FULL) ## set up .venv with everything

plan: $(FULL) ## check params.yaml and every source, then write models/ (UPDATE=1: take what has moved on a hub)
	@python -m stages.plan $(if $(UPDATE),--update)

demo: $(FULL) ## train the demo run, make its pairs, show what each layer predicts
	@python -m stages.plan --check
	@dvc --wait-for-lock repro models/demo/dvc.yaml:manifest
	@dvc --wait-for-lock repro --quiet --single-item plan catalogue
	@python -m stages.summary demo
	@python -m stages.show demo

repro: $(FULL) ## make what is new; goes on past a bad checkpoint, ends with a summary
	@python -m stages.plan --check
	@dvc --wait-for-lock repro --keep-going; ended=$$?; python -m stages.summary && exit $$ended

status: $(LIGHT) ## what is not up to date
	@dvc status

push: $(LIGHT) ## send the results to the remote (REMOTE=name for another one)
	@dvc push --run-cache $(if $(REMOTE),--remote $(REMOTE))

pull: $(LIGHT) ## bring the results from the remote (REMOTE=name for another one)
	@dvc pull $(if $(REMOTE),--remote $(REMOTE))

verify: $(LIGHT) ## hash everything again and compare with the manifests
	@python -m stages.verify

show: $(LIGHT) ## a logit lens in the terminal: MODEL=demo PROMPT="The capital of Peru is"
	@python -m stages.show $(or $(MODEL),demo) $(if $(PROMPT),--prompt "$(PROMPT)")

plots: $(LIGHT) ## agreement and KL over steps, as a page that works offline
	@python -m stages.plots

test: $(FULL) ## all tests
	@python -m pytest

lint: $(FULL) ## ruff: style and format
	@ruff check . && ruff format --check .

bench: $(FULL) ## CPU seconds and memory of every phase, on SmolLM2-135M
	@python -m tests.bench

zoo: $(FULL) ## a tiny model of every causal type of transformers through the stages: docs/architectures.md (TYPES="gpt2 opt")
	@python -m tests.zoo $(TYPES)
