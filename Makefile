# The project's commands; `make` lists them. Requirements: make, and Python 3.10 or later with pip.
# Each command installs its packages into .venv, and again only when a pyproject.toml has changed.

# The Python that creates .venv. Versions 3.10 to 3.12 also run the models of the oracle.
PYTHON    ?= python3
VENV      ?= .venv
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
# Number of pytest-xdist workers; 0 is plain pytest. Four on two cores, since tests wait for servers
# that start and stop: with three workers a quarter of the two cores was idle.
WORKERS   ?= 4
# The NumPy requirement; `make matrix` sets older versions.
NUMPY     ?= numpy

PY      := $(VENV)/bin/python
PYTEST  := $(PY) -m pytest -n $(WORKERS)
# --no-compile: Python compiles modules at import; compiling all of torch takes 25 s of a core.
INSTALL := $(PY) -m pip --disable-pip-version-check install --no-compile
# Runs several targets at a time. From version 4, make prints the output of each as a block. Three,
# since the installations wait for the network.
BESIDE  := $(MAKE) --no-print-directory -j3 $(if $(filter output-sync,$(.FEATURES)),-O) SIDE_BY_SIDE=1
# Before a recipe's command: with LOG set, one line with this title, and all output in that file.
step     = $(if $(LOG),@$(PYTHON) tools/step.py $(LOG) '$(1)')

# Turn off ONNX Runtime's usage reports.
export ORT_DISABLE_TELEMETRY := 1
# pytest rewrites the assertions of 500 files: 8 s for each worker unless .pyc files are written.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Prerequisites run in the order in which they are listed, and two installations must not run in one
# environment at the same time. `test` names the targets that may run in parallel.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.PHONY: help serve models graphs clients oracle perf train test lint types layers quick unit contract \
        tables wheel dist docs stack matrix campaign fuzz clean torch-models collected mlserver \
        quick-server quick-others

help:
	@awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } \
	    /^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

## Serve

# One line for each step instead of what pip, the builders and the server print.
serve: LOG = .cache/serve.log
serve: models  ## serve model_repository/ on HTTP_PORT=8000, show a first answer, serve on until Ctrl-C
	@$(PY) tools/serve.py --model-repository=model_repository --log-file=$(LOG) \
	    --http-port=$(HTTP_PORT) --grpc-port=$(GRPC_PORT) --metrics-port=$(METRICS_PORT)

models: $(VENV)/serving  ## build the models' artifacts that are missing or out of date
	$(call step,Models) $(PY) -m model_factory build

graphs: $(VENV)/serving  ## fetch the graphs of others that tests load, 52 MB
	$(PY) -m model_factory fetch

# Without a package index the tests that need these files are skipped with a reason.
clients: $(VENV)/serving  ## fetch the oldest supported client library, the types of KServe, KEDA and Grafana, and axe-core, 28 MB
	-$(PY) -m tools.versions fetch
	-test -e .cache/wheels/kserve-0.21.0-py3-none-any.whl || \
	    $(PY) -m pip --disable-pip-version-check download --quiet --no-deps --dest .cache/wheels kserve==0.21.0
	-test -e .cache/wheels/cloudcoil_models_keda-2.16.1.0-py3-none-any.whl || \
	    $(PY) -m pip --disable-pip-version-check download --quiet --no-deps --dest .cache/wheels \
	    cloudcoil-models-keda==2.16.1.0
	-test -e .cache/grafana/node_modules || npm install --silent --no-audit --no-fund --ignore-scripts \
	    --prefix .cache/grafana typescript@5.9 @grafana/schema@11.6.0
	-test -e .cache/axe/node_modules || npm install --silent --no-audit --no-fund --ignore-scripts \
	    --prefix .cache/axe axe-core@4.14.1

# MLServer, for tests/contract/test_conformance.py, in an environment of its own: its requirements
# differ. Without a package index the test is skipped with a reason.
MLSERVER := .cache/mlserver-1.7.1
mlserver: $(MLSERVER)/installed
$(MLSERVER)/installed:
	-$(PYTHON) -m venv --clear $(MLSERVER) && $(MLSERVER)/bin/python -m pip --quiet \
	    --disable-pip-version-check install --no-compile $(subst -,==,$(notdir $(MLSERVER))) && touch $@

## Compare with NVIDIA's tritonserver

oracle:  ## install tritonserver and perf_analyzer into .oracle/
	$(PYTHON) tools/oracle.py

perf: models oracle  ## measure both servers on all rows of docs/results/performance.md; QUICK=1 in two minutes
	mkdir -p build
	$(PY) -m benchmarks.bars $(if $(QUICK),--quick) --json build/bars.json --plot build/bars.png

## Check

# First the environment and, in parallel, what does not use it; then the targets that do, the longest
# first.
test:  ## all checks and all tests: what CI runs
	+$(BESIDE) $(VENV)/all oracle mlserver types collected torch-models lint layers graphs clients
	$(PYTEST)

# Collect once before the workers start. They collect at the same time, so without .pyc files each
# worker would compile every test file: 15 s of a core. Without torch, as `make quick` collects them.
collected: $(VENV)/dev
	TESTS_WITHOUT_TORCH=1 $(PY) -m pytest --collect-only -qqq

lint: $(VENV)/dev  ## style, format and language
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m tools.language

types: $(VENV)/dev  ## types, strictly
	$(PY) -m mypy

layers: $(VENV)/dev  ## the direction of imports
	$(VENV)/bin/lint-imports

# Two processes that collect half of the tests each: pytest-xdist would have each worker collect all.
# Split by folders: with a marker, pytest would collect the contract tests before it deselects them.
QUICK := TESTS_WITHOUT_TORCH=1 $(PY) -m pytest -q -rfE --hypothesis-profile=quick \
    -m 'not brute_force and not slow and not oracle and not stack'

quick: $(VENV)/dev models  ## unit tests and recorded answers in half a minute; starts no server
	+$(BESIDE) quick-server quick-others

quick-server:
	$(QUICK) tests/recorded tests/server tests/simulator

quick-others:
	$(QUICK) tests/factory tests/performance tests/replay tests/runtime

unit: $(VENV)/dev models  ## the tests that need no server beside them
	$(PYTEST) -m 'not slow and not oracle and not stack'

contract: $(VENV)/dev models oracle mlserver  ## both servers under the same requests
	$(PYTEST) tests/contract

# TABLES=write records the real server's answers again; review the diff.
TABLES ?= all
tables: $(VENV)/dev models oracle  ## ask the real server for every row of the recorded tables
	TABLES=$(TABLES) $(PYTEST) -m oracle -k answers_as_recorded tests/contract

wheel: $(VENV)/dev  ## build the six packages, install and import each alone
	$(PY) -m pytest tests/packaging

docs: $(VENV)/dev  ## the site of all pages, with the Python reference and a search, in build/site
	$(PY) -m tools.site

dist: $(VENV)/dev  ## wheels and source archives of the six packages in dist/, checked by twine
	$(PY) -m tools.release build

stack: $(VENV)/dev models  ## `make serve`, the examples, what pages show, and Docker where an engine runs
	$(PY) -m pytest tests/stack

# pyenv's interpreters are not on the PATH; its shims may be disabled.
matrix:  ## unit and wheel with each Python from 3.10 to 3.13, 3.10 and 3.11 with NumPy 1.26
	@failed=; \
	for version in 3.10 3.11 3.12 3.13; do \
	    pyenv=$$(echo ~/.pyenv/versions/$$version.*/bin | tr ' ' ':'); \
	    python=$$(PATH="$$pyenv:$$PATH" python$$version -c 'import sys; print(sys.executable)') \
	        || { echo "matrix: Python $$version is not here"; continue; }; \
	    case $$version in 3.10|3.11) numpy='numpy==1.26.*' ;; *) numpy='numpy>=2' ;; esac; \
	    echo "matrix: $$python, $$numpy"; \
	    mkdir -p .cache/matrix && echo "$$numpy" > ".cache/matrix/$$version.txt"; \
	    PIP_CONSTRAINT="$(CURDIR)/.cache/matrix/$$version.txt" \
	    $(MAKE) --no-print-directory unit wheel \
	        PYTHON="$$python" VENV=".cache/matrix/$$version" NUMPY="$$numpy" \
	        || failed="$$failed $$version"; \
	done; \
	test -z "$$failed" || { echo "matrix: failed with$$failed"; exit 1; }

HOURS ?= 0
campaign: $(VENV)/dev oracle  ## attack both servers while bystanders check the responses, ten minutes; HOURS=8 for more
	$(PY) -m benchmarks.attack --hours $(HOURS)

# A failing input is reduced and saved in tests/campaign/reduced, which the tests replay.
SECONDS ?= 60
fuzz: $(VENV)/fuzz  ## fuzz all decoders, guided by coverage, SECONDS=60 each
	$(PY) -m benchmarks.attack.fuzz --seconds $(SECONDS)

## Maintain

train: $(VENV)/train  ## train ge_classifier again and replace the parameters that ship
	$(PY) -m model_factory.digits_train

clean:  ## remove everything that these commands created
	rm -rf $(VENV) .oracle .cache .*_cache .hypothesis *.egg-info plugin/*.egg-info simulator/*.egg-info \
	    replay/*.egg-info in_process/*.egg-info check/*.egg-info reference_server/*/*.so
	rm -rf model_repository/*/*/.cache model_repository/*/*/*.onnx \
	    model_repository/*/*/*.pt2 model_repository/*/*/tokenizer.json \
	    model_repository/*/*/characters.txt
	find . -name __pycache__ -prune -exec rm -rf {} +

# The environment. An interrupted step leaves no stamp file and runs again the next time.

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is \
	needed, and $(PYTHON) is older; name another one: make PYTHON=python3.11 ...")'
	$(call step,Environment $(VENV)) $(PYTHON) -m venv $(VENV)

# Modules with a .pxd are compiled if there is a C compiler, and again after a change.
COMPILED := $(wildcard reference_server/*/*.pxd)

DECLARED := $(wildcard pyproject.toml */pyproject.toml) setup.py $(COMPILED) $(COMPILED:.pxd=.py)
OTHERS   := --editable ./plugin --editable ./simulator --editable ./replay --editable ./in_process \
            '$(NUMPY)'

ifdef SIDE_BY_SIDE
$(VENV)/serving $(VENV)/dev $(VENV)/train: $(VENV)/all ;
else
$(VENV)/serving: $(DECLARED) | $(VENV)/pyvenv.cfg
	$(call step,Packages) $(INSTALL) --editable '.[models,factory,client]' $(OTHERS)
	@touch $@

$(VENV)/dev: $(VENV)/serving
	$(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/train: $(VENV)/serving
	$(INSTALL) --editable '.[train]'
	@touch $@
endif

$(VENV)/fuzz: $(VENV)/dev
	$(INSTALL) --editable '.[fuzz]'
	@touch $@

# All extras in one step, for `test`: three steps would build the server three times.
$(VENV)/all: $(DECLARED) | $(VENV)/pyvenv.cfg
	$(INSTALL) --editable '.[models,factory,client,dev,train]' $(OTHERS)
	@touch $(VENV)/serving $(VENV)/dev $(VENV)/train $@

torch-models: $(VENV)/train
	$(PY) -m model_factory build --torch
