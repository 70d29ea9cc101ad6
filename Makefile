# make tune   search schedules for the headline problems: live with a Hopper GPU, else replayed from the journal
# make test   formatting, types and tests
# Both make .venv on their own and need Python 3.11 or later, nothing else.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
HOPPER := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -m1 '^9\.0')
TUNE_EXTRA := $(if $(HOPPER),tune,search)
# What makes up the package `tileseek` beside its own folder.
PACKAGES := codegen cost_model heuristics measure problems results search space

.PHONY: tune test lint clean

tune: .venv/with-$(TUNE_EXTRA)
	$(BIN)/tileseek tune headline --out runs/headline

test: lint
	$(BIN)/pytest -n 2 -q

lint: .venv/with-dev $(if $(HOPPER),.venv/with-tune) build/types
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

.venv/with-%: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --editable '.[$*]'
	touch $@

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed, and none was found"; exit 1; }
	$(PYTHON) -m venv .venv

# The folders under the names they are installed by, for tools that resolve imports without importing.
build/types: Makefile tileseek
	rm -rf $@ && mkdir -p $@/tileseek
	ln -s $(CURDIR)/tileseek/* $(addprefix $(CURDIR)/,$(PACKAGES)) $@/tileseek/

clean:
	rm -rf .venv build dist *.egg-info
