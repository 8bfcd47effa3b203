# make demo | test | test-all | soak | check | lock | clean: everything goes into .venv, nothing else of the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed
MINUTES ?= 10
# a process a core, at most eight; each takes neighbouring tests, and from another what that has not reached when its own are done
SPREAD := -n auto --maxprocesses 8 --dist worksteal
DEMO := scenarios/chat_static.yaml scenarios/chat.yaml
DEV_STAMP := $(VENV)/.installed-dev
LOCK := constraints-dev.txt

.PHONY: help demo test test-all soak check lock clean
help:
	@echo "make demo      replay 2,000 chat-like requests under static and continuous batching; reports in out/demo"
	@echo "make test      run the tests"
	@echo "make test-all  run them all, the long ones too"
	@echo "make soak      drawn runs through both engines and the oracle, MINUTES=10 of them"
	@echo "make check     ruff and mypy --strict"
	@echo "make lock      choose the versions of constraints-dev.txt anew (needs uv)"
	@echo "make clean     remove what demo and the tools have left"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "servecast needs Python 3.11 to 3.13; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv"; exit 1; }

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@echo "installing servecast and its libraries into $(VENV), a minute or two"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV_STAMP): pyproject.toml constraints-dev.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[dev]'
	@touch $@ $(RUN_STAMP)

demo: $(RUN_STAMP)
	@echo "replaying 2,000 requests four times"
	@echo "1. throughput when there is always more to do (256 requests in flight):"
	$(BIN)/servecast compare $(DEMO) --set load=closed --set load.width=256 --out out/demo/saturated
	@echo "2. latency at one request a second, which both keep up with:"
	$(BIN)/servecast compare $(DEMO) --set workload.arrivals.rate=1 --out out/demo/carried
	@echo "open out/demo/saturated/report.html and out/demo/carried/report.html"

test: $(DEV_STAMP)
	$(BIN)/python -m tests.engines
	$(BIN)/python -m pytest $(SPREAD) -m "not nightly"

test-all: $(DEV_STAMP)
	$(BIN)/python -m tests.engines
	$(BIN)/python -m pytest $(SPREAD)

soak: $(DEV_STAMP)
	$(BIN)/servecast selftest --minutes $(MINUTES) --jobs 2
	$(BIN)/python -m tests.oracle --minutes $(MINUTES)

lock:
	@echo "# Versions of everything the tests were last run with, for Python 3.11 to 3.13: pip install -c $(LOCK) -e '.[dev]'" > $(LOCK)
	@echo "# Made by make lock; pyproject.toml has the ranges that are accepted." >> $(LOCK)
	uv pip compile --quiet --universal --python-version 3.11 --extra dev --no-emit-index-url --no-header --no-annotate \
	  pyproject.toml >> $(LOCK)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf out build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
