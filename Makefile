# Everything a fresh clone needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of Python processes: none of them should compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-kafka services test check fetch compat sim soak soak-targets bench docs env clean

env: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Turnback needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing locked dependencies into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: env
	@$(BIN)/python examples/demo.py

# Kafka to Kafka and a Delta table, with kills in between
demo-kafka: env
	@PYTHONPATH=tests $(BIN)/python examples/demo_kafka.py

# Servers to develop against, until Ctrl-C: make services ONLY="kafka postgres"
ONLY ?=

services: env
	@sh tests/services/install.sh
	@PYTHONPATH=tests $(BIN)/python -m services $(ONLY)

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	TURNBACK_QUICK=1 $(BIN)/python -m pytest -q -n 2 -m 'not slow' tests/unit

test: fetch check
	$(BIN)/python -m pytest -q -n 2 -m 'slow or hypothesis or orders' tests/unit
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations=30 \
		tests/engine tests/simulation tests/property tests/integration tests/crash tests/systems tests/docs tests/browser tests/stories tests/soak

# What tests need of the system; jars, a gateway and an archive of classes come while they run
fetch: env
	@sh tests/services/install.sh
	@mkdir -p .cache
	@PYTHONPATH=tests nice $(BIN)/python -m services.fetch > .cache/fetch.log 2>&1 &

# Jobs with savepoints and restores on the oldest and the newest Spark; docs/compatibility.md
compat:
	$(PYTHON) tests/compat/run.py

# Whole runs in one process, decided by a seed: make sim SEEDS=20000, make sim SEED=7 for one story
SEEDS ?= 2000

sim: env
	PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# Kills processes of a job and its servers at random: make soak MINUTES=30 SEED=7 (the seed repeats another run)
MINUTES ?= 30
SEED ?=

soak: env
	@sh tests/services/install.sh
	PYTHONPATH=tests $(BIN)/python -m soak --servers --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --report .cache/soak
	@$(MAKE) soak-targets

# 200,000 transfers into every exactly-once sink, with 40 kills each: make soak-targets TARGETS="kafka postgres"
TARGETS ?=
KILLS ?= 40

soak-targets: env
	@sh tests/services/install.sh
	PYTHONPATH=tests $(BIN)/python tests/systems/full_size.py $(TARGETS) --kills $(KILLS) $(if $(SEED),--seed $(SEED))

bench: env
	sh benchmarks/setup_flink.sh
	sh benchmarks/setup_bytewax.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.windows
	$(BIN)/python -m benchmarks.savepoints
	$(BIN)/python -m benchmarks.recovery
	$(BIN)/python -m benchmarks.idle
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.databases
	$(BIN)/python -m benchmarks.kafka
	$(BIN)/python -m benchmarks.growth

docs: env
	$(BIN)/python -m pytest -q tests/docs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
