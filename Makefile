# `make demo` shows it, `make check` is for every edit, `make test` for every commit. Python 3.11 or newer is all they need.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS := $(VENV)/.tests-ready
TORCH ?= torch==2.13.0  # `make test TORCH=` leaves it out: the tests that measure layers and kernels then skip

.PHONY: demo check test lint types bench clean

demo: $(READY)
	$(RUN)/inferometer analyze llama-3.1-8b --gpu h200 --batch-size 8 --input-len 1024 --output-len 128

check: $(TESTS)  # the quick tests, within a minute
	$(RUN)/pytest -m "not slow"

test: lint types  # everything, within minutes; says what was skipped and why
	$(RUN)/pytest -rs

lint: $(TESTS)
	$(RUN)/ruff check src tests benchmarks
	$(RUN)/ruff format --check src tests benchmarks

types: $(TESTS)
	$(RUN)/mypy

bench: $(TESTS)
	$(RUN)/python benchmarks/cold_start.py
	$(RUN)/python benchmarks/points_per_second.py
	$(RUN)/python benchmarks/serving_speed.py
	$(RUN)/python benchmarks/web_load.py

$(READY): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'inferometer needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -e .
	$(RUN)/python -m compileall -q src/inferometer  # as an ordinary installation would
	touch $(READY)

$(TESTS): $(READY)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' $(if $(strip $(TORCH)),$(strip $(TORCH)) transformers)
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y chromium; } \
	  || echo "Chromium cannot be installed here: the tests that look at the page will skip"
	touch $(TESTS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
