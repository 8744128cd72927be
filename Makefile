# One verb for each thing a developer does. Needs Python 3.11 or newer with venv, and nothing else.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

# The parts of the tests: folders of their own, those of whole servers by the initials of their files, and the rest.
FOLDERS := broker conformance stub gateway
INITIALS := s i-n e-h o-p q-r c-d a-b t-z
PARTS := $(INITIALS:%=test-system-%) $(FOLDERS:%=test-%) test-rest

.PHONY: install run test $(PARTS) check random-events bench system-compose system-kubernetes

install: $(INSTALLED)

$(INSTALLED): requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit("tensorbus needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

define TRY
Once the server is ready, try it from another terminal:

  curl -s localhost:8000/v2/models/add_sub/infer -d '{"inputs": [
    {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]},
    {"name": "INPUT1", "datatype": "FP32", "shape": [4], "data": [10, 20, 30, 40]}]}'

or, by Triton's own client:  $(BIN)/python examples/client.py

endef
export TRY

run: $(INSTALLED)
	@echo "$$TRY"
	@exec $(BIN)/tensorbus serve --model-repository examples/models

# On two cores three parts at a time, for a good part of the time is waiting. The longest come first.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory --output-sync=line --keep-going --jobs=3 $(PARTS)

$(INITIALS:%=test-system-%): test-system-%: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/system/test_[$*]*.py

$(FOLDERS:%=test-%): test-%: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/$*

test-rest: $(INSTALLED)
	$(BIN)/python -m pytest -q --ignore=tests/system $(FOLDERS:%=--ignore=tests/%)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

# The tests of random sequences of events, 10,000 sequences each: some hours.
random-events: $(INSTALLED)
	TENSORBUS_EXAMPLES=10000 $(BIN)/python -m pytest -q -p no:timeout -W ignore $$(grep -rl tests.random_events tests)

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# The stack of deploy/compose.yaml, for real; skipped without Docker.
system-compose: $(INSTALLED)
	$(BIN)/python -m pytest -q -rs tests/deploy/system_compose.py

# The Helm chart on a cluster of one node, this machine; skipped without one.
system-kubernetes: $(INSTALLED)
	$(BIN)/python -m pytest -q -rs tests/deploy/system_kubernetes.py
