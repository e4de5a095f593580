# Everything a fresh clone needs: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of Python processes: none of them should compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

# Options for every run of pytest: make test-kafka PYTEST_ARGS="-k kills -x"
PYTEST_ARGS ?=
PYTEST := $(BIN)/python -m pytest -q $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo demo-kafka services test test-all lint check hooks coverage fetch compat sim soak soak-targets bench docs site env clean

help: ## what there is to make
	@sed -n 's/^\([A-Za-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do printf '  %-14s %s\n' "$$name" "$$what"; done

env: $(STAMP) ## the environment, in .venv

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Turnback needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing locked dependencies into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: env ## the flagship job, killed, restored and forked
	@$(BIN)/python examples/demo.py

demo-kafka: env ## Kafka to Kafka and a Delta table, with kills in between
	@PYTHONPATH=tests $(BIN)/python examples/demo_kafka.py

ONLY ?=

services: env ## servers to develop against, until Ctrl-C: make services ONLY="kafka postgres"
	@sh tests/services/install.sh
	@PYTHONPATH=tests $(BIN)/python -m services $(ONLY)

SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

site: env ## the documentation as a site, in .cache/site
	$(SITE)

lint: env ## format, style, types, import direction, and whether the site builds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(SITE)

# When what was left open is collected depends on chance, so that alone is shown and fails nothing.
STRICT := -W error -W default::ResourceWarning -W default::pytest.PytestUnraisableExceptionWarning

check: lint ## lint, and unit tests, which fail at warnings: about two minutes
	TURNBACK_EXAMPLES=few $(PYTEST) -n 2 $(STRICT) -m 'not slow' tests/unit

hooks: ## let git run `make lint` before each commit of this clone
	@printf '#!/bin/sh\nexec make --silent lint\n' > "$$(git rev-parse --git-path hooks)/pre-commit"
	@chmod +x "$$(git rev-parse --git-path hooks)/pre-commit"

coverage: env ## which lines unit and engine tests run, in .cache/coverage
	TURNBACK_EXAMPLES=few $(BIN)/coverage run --data-file=.cache/coverage.data --source=turnback \
		-m pytest -q -m 'not slow' tests/unit tests/engine
	$(BIN)/coverage report --data-file=.cache/coverage.data --sort=cover --skip-covered
	$(BIN)/coverage html --data-file=.cache/coverage.data --directory=.cache/coverage --quiet

SUITES := tests/engine tests/simulation tests/property tests/integration tests/crash tests/systems tests/docs \
	tests/browser tests/stories tests/soak
SLOW_UNITS := slow or hypothesis or orders
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder --durations=30

test: fetch check ## what CI runs, with real servers: everything but repetition, about half an hour
	TURNBACK_EXAMPLES=some $(PYTEST) -n 2 -m '($(SLOW_UNITS)) and not exhaustive' tests/unit
	TURNBACK_EXAMPLES=some $(PYTEST) $(SIDE_BY_SIDE) -m 'not exhaustive' $(SUITES)

test-all: fetch check ## everything, before a release: every kill point, server, seed and size
	$(PYTEST) -n 2 -m '$(SLOW_UNITS)' tests/unit
	$(PYTEST) $(SIDE_BY_SIDE) $(SUITES)

AREAS := kafka sql tables redis rabbitmq kinesis engine crash stories
.PHONY: $(addprefix test-,$(AREAS))

test-kafka: TESTS = tests/systems/kafka tests/unit/connectors/kafka
test-sql: TESTS = tests/systems/sql tests/unit/connectors/sql
test-tables: TESTS = tests/systems/tables tests/unit/connectors/tables
test-redis: TESTS = tests/systems/redis
test-rabbitmq: TESTS = tests/systems/rabbitmq tests/unit/connectors/rabbitmq
test-kinesis: TESTS = tests/systems/kinesis tests/unit/connectors/kinesis
test-engine: TESTS = tests/engine tests/property tests/simulation
test-crash: TESTS = tests/crash
test-stories: TESTS = tests/stories

$(addprefix test-,$(AREAS)): fetch
	$(PYTEST) -n 2 --dist loadfile $(TESTS)

test-AREA: ## one area: kafka, sql, tables, redis, rabbitmq, kinesis, engine, crash, stories
	@echo "AREA is one of: $(AREAS)"

# What tests need of the system; jars, a gateway and an archive of classes come while they run
fetch: env
	@sh tests/services/install.sh
	@mkdir -p .cache
	@PYTHONPATH=tests nice $(BIN)/python -m services.fetch > .cache/fetch.log 2>&1 &

compat: ## savepoints and restores on the oldest and the newest Spark
	$(PYTHON) tests/compat/run.py

SEEDS ?= 2000
PROCESSES ?= $(shell getconf _NPROCESSORS_ONLN)

sim: env ## whole runs decided by a seed: make sim SEEDS=20000, make sim SEED=7 for one story
	PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --processes $(PROCESSES))

MINUTES ?= 30
SEED ?=

soak: env ## kills a job's processes and servers at random: make soak MINUTES=30 SEED=7
	@sh tests/services/install.sh
	PYTHONPATH=tests $(BIN)/python -m soak --servers --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --report .cache/soak
	@$(MAKE) soak-targets

TARGETS ?=
KILLS ?= 40

soak-targets: env ## 200,000 transfers and 40 kills for every exactly-once sink: TARGETS="kafka postgres"
	@sh tests/services/install.sh
	PYTHONPATH=tests $(BIN)/python tests/systems/full_size.py $(TARGETS) --kills $(KILLS) $(if $(SEED),--seed $(SEED))

bench: env ## comparisons with what else there is
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

docs: env ## whether the documentation shows what there is
	$(PYTEST) tests/docs

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
