# `make demo` shows it, `make check` is for every edit, `make test` for every commit. Each sets up what it needs in .venv;
# Python 3.11 or newer is all you bring. CONTRIBUTING.md explains the variables.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS := $(VENV)/.tests-ready
SITE := $(VENV)/.docs-ready
CONSTRAINTS ?= -c constraints.txt  # `make test CONSTRAINTS=` takes the newest versions of everything
# PyTorch is for the tests that measure layers and kernels, which skip without it (`TORCH=`). On Linux it is the build without
# CUDA, where pip knows one; `TORCH_INDEX=URL` names an index that has it. `TORCH=torch` takes any: gigabytes with CUDA.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_INDEX ?=
SYSTEM_PACKAGES ?= yes  # `make test SYSTEM_PACKAGES=no` installs nothing outside of .venv
PIP = $(RUN)/python -m pip install --quiet --disable-pip-version-check $(strip $(CONSTRAINTS))

.PHONY: demo check test lint types browser dist release-check bench accuracy data schema docs docs-serve notebooks clean

demo: $(READY)
	$(RUN)/inferometer analyze llama-3.1-8b --gpu h200 --batch-size 8 --input-len 1024 --output-len 128

check: $(TESTS)  # the quick tests, within a minute
	$(RUN)/pytest -m "not slow"

test: lint types browser  # everything, within minutes; says what was skipped and why
	$(RUN)/pytest -rs

lint: $(TESTS)
	$(RUN)/ruff check src tests benchmarks tools
	$(RUN)/ruff format --check src tests benchmarks tools

types: $(TESTS)
	$(RUN)/mypy

# What a release passes beside the tests: a million inputs that nobody would type, and a server that runs on. Hours.
SEED ?= 1
INPUTS ?= 1000000
PYTHONS ?= python3.11 python3.12 python3.13

release-check: export INFEROMETER_SLOW_TESTS = 1
release-check: test dist
	$(RUN)/python tools/fuzz.py --seed $(SEED) --count $(INPUTS) --jobs 2 --counts out/fuzz.json --failures out/fuzz-failures.jsonl
	$(RUN)/python tools/soak.py
	$(RUN)/python tools/check_wheel.py $(addprefix --python ,$(PYTHONS))

# The wheel and the source archive, in dist/.
dist: $(TESTS)
	rm -rf dist
	$(RUN)/python -m build --outdir dist

# How fast it is, then how right.
SPEED := cold_start points_per_second serving_speed search web_load
ACCURACY := engine_steps kernel_accuracy delta_rule collectives training serving ranking

bench: $(TESTS)
	for name in $(SPEED) $(ACCURACY); do echo "== $$name"; $(RUN)/python benchmarks/$$name.py || exit 1; done

# Every table of docs/accuracy.md and docs/accuracy, the expected errors, and what the package ships of them, from
# benchmarks/data: a quarter of an hour on two cores. Each server is simulated once; its figures are in out/servers.csv.
accuracy: $(TESTS)
	mkdir -p out && rm -f out/servers.csv
	$(RUN)/python benchmarks/accuracy.py --write --rows out/servers.csv
	$(RUN)/python benchmarks/bands.py --predict --rows out/servers.csv --write
	$(RUN)/python benchmarks/accuracy.py --write --summary
	$(RUN)/python tools/accuracy_data.py

# What the package ships and code makes; everything else in src/inferometer/data is written by hand.
#   data/accuracy.json     from docs/accuracy.md and docs/accuracy (`python benchmarks/accuracy.py --write` makes its tables)
#   data/expected_errors.json from benchmarks/data/predictions.csv (`python benchmarks/bands.py --predict` makes the rows)
#   data/profiles/*/*.json from benchmarks/data/*_kernels*.csv, and from AIConfigurator's kernel tables (Apache-2.0), which are
#                          too large to travel: $INFEROMETER_SHARED/measured/kernel_tables; without them those files stay
data: $(TESTS)
	$(RUN)/python benchmarks/bands.py --write
	$(RUN)/python tools/accuracy_data.py
	$(RUN)/python tools/fit_kernels.py

# What follows from the schema of arguments (specs/plan_args.py, specs/command_args.py): types of keywords, a page of flags;
# and docs/reference and the formulas of docs/concepts, from the structs, the data and the operators.
schema: $(TESTS)
	$(RUN)/python tools/keywords.py
	$(RUN)/python tools/flags.py
	$(RUN)/python tools/reference.py

# The docs site, into build/site; a warning is an error. `make docs-serve` shows it while you write.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(SITE)
	$(RUN)/mkdocs build --strict

docs-serve: $(SITE)
	$(RUN)/mkdocs serve

# What the cells of the notebooks show, from a run in a kernel; `make test` compares it with a run without one.
notebooks: $(TESTS)
	$(PIP) -e '.[notebook]'
	$(RUN)/python tools/notebooks.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'inferometer needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	$(RUN)/python -m compileall -q src/inferometer  # as an ordinary installation would
	touch $(READY)

$(TESTS): $(READY)
	$(PIP) -e '.[dev]'
	$(if $(strip $(TORCH)),$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(strip $(TORCH)) transformers || \
	  echo "pip has no $(strip $(TORCH)): tests that measure layers and kernels will skip (CONTRIBUTING.md, Set-up)")
	touch $(TESTS)

$(SITE): $(READY)
	$(PIP) -e '.[docs]'
	touch $(SITE)

# The tests of the page need Chrome or Chromium: $CHROMIUM, or one that is installed.
browser: $(TESTS)
	@cd tests && ../$(RUN)/python -m helpers.browser || if [ $(strip $(SYSTEM_PACKAGES)) = yes ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing the system package chromium with apt-get; \`make test SYSTEM_PACKAGES=no\` would not."; \
	  apt-get update -qq && apt-get install -qq -y chromium || echo "It could not be installed: the tests of the page will skip."; \
	else echo "The tests of the page will skip."; fi

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
