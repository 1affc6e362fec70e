# The commands of a checkout. Each makes what it needs the first time and only what changed after that.
#
#   make demo                 the whole loop on this machine; stays up until Ctrl-C (DEMO_ONCE=1: stops at the end)
#   make test                 every test          make lint      style, types, borders, workflows
#   make demo TORCH=2.13.0    with another torch, in a virtual environment of its own
#   make bench                the benchmarks, kept in benchmarks/results; BENCH="FILES" runs some
#   make clean                forget what was built (keeps .venv)
#   make sanitize             the card's tests under ThreadSanitizer, then AddressSanitizer

TORCH ?= 2.14.1
PYTHON ?= python3
PYTEST_ARGS ?=
WORKERS ?= 2
BENCH ?= $(filter-out %/machine.py,$(wildcard benchmarks/*/*.py))

DEFAULT_TORCH := 2.14.1
VENV := $(if $(filter $(DEFAULT_TORCH),$(TORCH)),.venv,.venv-$(TORCH))
BIN := $(VENV)/bin
OLD_PYTHON := setup: Python 3.10 or newer is needed, this is %d.%d: name another, make PYTHON=python3.11
SETUP := $(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 10) or sys.exit("$(OLD_PYTHON)" % v)' && \
	$(PYTHON) tools/setup.py --venv $(VENV) --torch $(TORCH)

.PHONY: help setup setup-tests setup-system demo test sanitize lint format bench clean

help:
	@sed -n 's/^#   \(.*\)/\1/p' Makefile

setup:
	@$(SETUP)

setup-tests:
	@$(SETUP) --tests

setup-system:
	@$(PYTHON) tools/setup.py --system-only

demo: setup
	@DEMO_ONCE=$(DEMO_ONCE) $(BIN)/python -m demo

# A file's tests share servers and runs, so they stay in one worker.
test: setup-tests
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

sanitize: setup-tests
	@set -e; for variant in thread address; do echo "sanitize: $$variant"; \
		CARD_VARIANT=$$variant $(BIN)/pytest -q tests/spyre_backend/test_card.py; done

lint: setup
	@echo "lint: ruff";           $(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@echo "lint: mypy --strict";  $(BIN)/mypy
	@echo "lint: import borders"; $(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@echo "lint: clang-format";   git ls-files '*.cpp' '*.h' | xargs -r $(BIN)/clang-format --dry-run -Werror
	@echo "lint: workflows";      $(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@echo "lint: actions";        $(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	@echo "lint: zizmor";         $(BIN)/zizmor --offline --quiet --no-progress .github

format: setup
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .
	@git ls-files '*.cpp' '*.h' | xargs -r $(BIN)/clang-format -i

bench: setup
	@$(BIN)/python benchmarks/run.py $(BENCH)

clean:
	@rm -rf build *.egg-info spyre_backend/_C.*.so .venv*/.setup-extension
