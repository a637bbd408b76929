# make serve: run everything on this machine.   make test: every check.
# torch: the lock names a version; where pip would take a CUDA build and you want the CPU one, set PIP_EXTRA_INDEX_URL.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: serve test lint install bench lock clean

serve: install
	@exec $(BIN)/sage up

test: lint
	$(BIN)/pytest -q -n 2 -m "not gpu"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	for each in tests/bench/bench_*.py; do $(BIN)/python $$each || exit 1; done

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# After a change of dependencies: installs what pyproject.toml allows, and writes down what came.
lock:
	$(BIN)/python -m pip install --quiet --editable '.[embedded,trainer,dev]'
	$(BIN)/python -m pip freeze --exclude-editable --all --exclude pip | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .*_cache
