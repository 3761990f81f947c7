# Every target builds .venv by itself when it is missing or its requirements changed; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WHAT := --constraint constraints.txt --editable '.[train,vision,hf,ray,tune,docs,dev]'
# Installed without byte code, which the first import writes; a shell that forbids it would make each process compile again.
export PYTHONDONTWRITEBYTECODE :=

# What the site is made of: it is built again only if something has changed.
SITE := mkdocs.yml CHANGELOG.md CONTRIBUTING.md $(shell find docs examples src studies website -type f -not -name '*.pyc')

# Those that methods are ranked by, in the order of the tables.
STUDIES := digits digits-lt fashion-mnist fashion-mnist-lt cifar10 cifar10-lt tiny-imagenet newsgroups20 camvid

.PHONY: demo test pytest setup lint bench docs docs-serve leaderboard

demo: $(READY)
	$(BIN)/calibrant compare digits-lt --losses ce ls fl mbls cals-alm adafocal --seeds 3 --report

# The tests build the site, if need be, and look at it.
test: $(READY)
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: $(READY)
	$(BIN)/pytest

setup: $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: site/index.html
	@echo "The site is in site/index.html"

site/index.html: $(READY) $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

leaderboard: $(READY)
	$(BIN)/calibrant leaderboard $(STUDIES:%=studies/%) --into studies/README.md
	$(BIN)/calibrant leaderboard $(STUDIES:%=studies/%) --into README.md --top 8

bench: $(READY)
	$(BIN)/python benchmarks/bench_losses.py
	$(BIN)/python benchmarks/bench_metrics.py
	$(BIN)/python benchmarks/bench_posthoc.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_texts.py
	$(BIN)/python benchmarks/bench_start.py
	$(BIN)/python benchmarks/bench_threads.py
	$(BIN)/python benchmarks/bench_epochs.py

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Development needs Python 3.11 or newer; choose one with: make PYTHON=python3.12")'
	@echo "Setting up .venv: a few minutes and about 6 GB, mostly PyTorch."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@# pip knows of indexes that uv is not told about.
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(WHAT) || $(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(WHAT)
	@touch $@
