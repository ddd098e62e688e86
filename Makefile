# Two commands do everything on a machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check bench clean

demo: $(READY)
	$(RUN)/inferometer analyze llama-3.1-8b --gpu h200 --batch-size 8 --input-len 1024 --output-len 128

test: lint types check

lint: $(READY)
	$(RUN)/ruff check src tests benchmarks
	$(RUN)/ruff format --check src tests benchmarks

types: $(READY)
	$(RUN)/mypy

check: $(READY)
	$(RUN)/pytest

bench: $(READY)
	$(RUN)/python benchmarks/cold_start.py
	$(RUN)/python benchmarks/points_per_second.py

$(READY): pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'inferometer needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(RUN)/python -m compileall -q src/inferometer  # as an ordinary installation would
	touch $(READY)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
