# Every target builds .venv by itself when it is missing or its requirements changed; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Installed without byte code, which the first import writes; a shell that forbids it would make each process compile again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test setup lint bench

demo: $(READY)
	$(BIN)/calibrant compare digits-lt --losses ce ls fl mbls cals-alm adafocal --seeds 3 --report

test: lint
	$(BIN)/pytest

setup: $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/bench_losses.py
	$(BIN)/python benchmarks/bench_metrics.py
	$(BIN)/python benchmarks/bench_posthoc.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_texts.py
	$(BIN)/python benchmarks/bench_start.py
	$(BIN)/python benchmarks/bench_threads.py

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Development needs Python 3.11 or newer; choose one with: make PYTHON=python3.12")'
	@echo "Setting up .venv: a few minutes and about 6 GB, mostly PyTorch."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[train,vision,hf,ray,dev]'
	@touch $@
