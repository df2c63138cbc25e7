.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BENCH := $(VENV)/bin/bench

METHOD ?= vcc
TASK ?= narrativeqa
# Empty ones are left to conf/config.yaml.
REQUEST = method=$(METHOD) task=$(TASK) \
  $(if $(MODEL),model=$(MODEL)) $(if $(DATA),data=$(DATA)) $(if $(DATA_DIR),data.dir=$(abspath $(DATA_DIR))) \
  $(if $(LENGTH),length=$(LENGTH)) $(if $(N),n=$(N)) $(if $(BATCH),batch=$(BATCH)) \
  $(if $(DEVICE),device=$(DEVICE)) $(if $(DTYPE),dtype=$(DTYPE)) $(if $(THREADS),threads=$(THREADS)) \
  $(if $(SEED),seed=$(SEED)) $(if $(MEASURE),measure=$(MEASURE)) $(if $(RESULTS),results=$(RESULTS)) \
  $(if $(FORCE),force=true) $(ARGS)

.PHONY: help setup bench test trust cluster selfbench lint speed embedded clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY)  ## the virtual environment, and nothing else

$(READY): pyproject.toml
	@echo "Installing into $(VENV) (about a minute) …"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

bench: $(READY)  ## one cell: METHOD= TASK= [MODEL= DATA= DATA_DIR= LENGTH= N= DEVICE= DTYPE= THREADS= SEED= RESULTS= FORCE=1 ARGS='any=override']
	@$(BENCH) run $(REQUEST)

test: $(READY)  ## the tests, but for those of `make trust`
	@$(VENV)/bin/python -m pytest -n 2

trust: $(READY)  ## the tests of measurement itself: cheats, kills, memory (half an hour)
	@BENCH_KILLS=40 $(VENV)/bin/python -m pytest tests/trust

cluster: $(READY)  ## sweeps on a real one-node Slurm that is started and stopped for it (3 minutes)
	@tests/cluster/run

selfbench: $(READY)  ## what the harness itself costs, beside its goals [MODEL=]
	@$(VENV)/bin/python -m bench.selfbench $(MODEL)

lint: $(READY)  ## ruff and mypy
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

speed: $(READY)  ## attention methods against fused SDPA on this machine (5 minutes)
	@$(VENV)/bin/python -m tests.speed $(ARGS)

embedded: $(READY)  ## train the embedded models again (cost and expected score: conf/recipe/embedded_t5.yaml)
	@$(VENV)/bin/python -m bench.children.train conf/recipe/embedded_t5.yaml
	@$(VENV)/bin/python -m bench.children.train conf/recipe/embedded_t5_vcc.yaml

clean:  ## remove the environment and caches; rows stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
