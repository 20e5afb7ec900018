# Everything that a person or a CI runs. `make demo` and `make test` do all their own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help system setup demo test lint check coverage mutation bench soak lock audit clean

# The programs of iptables stand in folders that ordinary users do not have on their path.
export PATH := $(PATH):/usr/sbin:/sbin
BIN := .venv/bin
# Exact versions and hashes of everything; nothing is built with what a server happens to have today.
LOCKED := .ci/locked
INSTALL := $(BIN)/pip install --quiet --require-hashes --no-build-isolation
PACKAGES := kproxy_ipt cli/kproxy_ipt_cli
ROOT := $(filter 0,$(shell id -u))

# Names the Debian packages of what is missing; whatever Python comes first on the path must bring its own parts.
define MISSING_PACKAGES
missing=()
need() { command -v "$$1" >/dev/null || missing+=("$$2"); }
need iptables-nft iptables
need iptables-legacy iptables
need ip iproute2
need conntrack conntrack
need nft nftables
need ipset ipset
need gcc gcc
need kubectl kubernetes-client
need curl curl
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
need python3 python3
if command -v python3 >/dev/null; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    python3 -c 'import pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()' \
        2>/dev/null || missing+=(python3-dev)
fi
printf '%s\n' "$${missing[@]}" | sort -u | xargs
endef
export MISSING_PACKAGES

help: ## Show the targets.
	@grep -hE '^[a-z]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 8

system:
	@missing="$$(bash -c "$$MISSING_PACKAGES")"
	if [ -n "$$missing" ]; then
	    if [ -z "$(ROOT)" ] || ! command -v apt-get >/dev/null; then
	        echo "Missing on this machine (names of Debian packages): $$missing" >&2
	        echo "Please install them, for example: sudo apt-get install $$missing" >&2
	        exit 1
	    fi
	    echo "Installing $$missing"
	    export DEBIAN_FRONTEND=noninteractive
	    apt-get -qq update
	    apt-get -qq install --no-install-recommends $$missing >/dev/null
	fi
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	    echo "Python 3.11 or newer is needed; python3 on the path is $$(python3 --version)" >&2
	    exit 1
	}

# Made anew when the project's dependencies change; the parts of `pip install` that are done already take a second.
.venv/.package: pyproject.toml $(LOCKED)/build.txt $(LOCKED)/project.txt | system
	@$(BIN)/python -c '' 2>/dev/null || { rm -rf .venv; python3 -m venv .venv; }
	echo "Installing the package into .venv"
	$(INSTALL) --requirement $(LOCKED)/build.txt
	$(INSTALL) --requirement $(LOCKED)/project.txt
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

.venv/.development: .venv/.package $(LOCKED)/dev.txt
	@echo "Installing the development tools into .venv"
	$(INSTALL) --requirement $(LOCKED)/dev.txt
	touch $@

setup: .venv/.development ## Install system packages (as root), the package and the development tools.

demo: .venv/.package ## Show the rules at work: a node, pods and a client as network namespaces, real connections.
	@if [ -n "$(ROOT)" ]; then
	    exec $(BIN)/python -m kproxy_ipt.testing.demo
	fi
	# An ordinary user is root enough in namespaces of their own.
	unshare --map-root-user --net --mount bash -c 'mount -t tmpfs tmpfs /run && exec "$$@"' demo \
	    $(BIN)/python -m kproxy_ipt.testing.demo

lint: setup ## Check style, types, layers, docstrings, and that what is installed is what is locked.
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/interrogate --ignore-private --ignore-semiprivate tests $(PACKAGES)
	$(BIN)/python .ci/dependencies.py

check: lint ## What to run before a commit: lint and the tests that need no kernel.
	@$(BIN)/pytest -q -n 2 -m 'not kernel'

test: lint ## Everything: lint and all tests; kernel tests only as root.
	@if [ -n "$(ROOT)" ]; then
	    exec $(BIN)/pytest -q -n 2
	fi
	echo "Not root: the kernel tests are left out"
	$(BIN)/pytest -q -n 2 -m 'not kernel'

coverage: setup ## Line coverage of all tests, programs and daemons that they start included; as root; at least 95 %.
	@mkdir -p .coverage
	$(BIN)/pytest -q -n 2 --cov --cov-report=term --cov-fail-under=95

.venv/.mutation: .venv/.development $(LOCKED)/mutation.txt
	@echo "Installing what makes mutants into .venv"
	$(INSTALL) --requirement $(LOCKED)/mutation.txt
	touch $@

mutation: .venv/.mutation ## Change each line of selection, rules and plan, and see whether a test notices; an hour.
	@$(BIN)/mutmut run
	$(BIN)/mutmut results

.venv/.bench: .venv/.development $(LOCKED)/bench.txt
	@echo "Installing what draws pictures into .venv"
	$(INSTALL) --requirement $(LOCKED)/bench.txt
	touch $@

bench: .venv/.bench ## Measure syncs, changes and new flows; tables, CSV and SVG; as root. OPTIONS="--sizes 100,1000" and others.
	@$(BIN)/python -m bench $(OPTIONS)

soak: setup ## Half an hour of chance: changes under traffic, generated worlds, faults; as root.
	@failed=()
	for part in churn worlds faults; do $(BIN)/python bench/soak_$$part.py || failed+=($$part); done
	if [ $${#failed[@]} -gt 0 ]; then echo "Not as promised: $${failed[*]}" >&2; exit 1; fi

.venv/.audit: .venv/.development $(LOCKED)/audit.txt
	@echo "Installing what resolves and audits dependencies into .venv"
	$(INSTALL) --requirement $(LOCKED)/audit.txt
	touch $@

# Each file agrees with those before it, so that all can be installed side by side.
lock: .venv/.audit ## Write .ci/locked anew from pyproject.toml; versions that still fit stay. OPTIONS=--upgrade takes the newest.
	@resolve="$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate"
	resolve+=" --no-emit-index-url $(OPTIONS)"
	$$resolve --output-file $(LOCKED)/project.txt pyproject.toml
	agreed="--constraint $(LOCKED)/project.txt"
	for group in build dev mutation bench audit; do
	    $$resolve $$agreed --output-file $(LOCKED)/$$group.txt --group $$group
	    agreed+=" --constraint $(LOCKED)/$$group.txt"
	done

audit: .venv/.audit ## Ask for known vulnerabilities of everything that is locked. OPTIONS="--service osv" asks another service.
	@$(BIN)/python .ci/dependencies.py --audit $(OPTIONS)

clean: ## Remove what builds and tools leave behind, the virtual environment too.
	@rm -rf .venv build dist ./*.egg-info .coverage mutants
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
