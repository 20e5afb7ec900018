# Everything that a person or a CI runs. `make demo` and `make test` do all their own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help system browser setup demo test lint check coverage mutation bench soak docs shipped dist lock audit image clean

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
if [ -n "$${IMAGE_TOOLS:-}" ]; then
    need buildah buildah
    need crun crun
    need mmdebstrap mmdebstrap
fi
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

# 120 MB for the tests of the status page, which only root runs; nothing else needs it.
browser: setup
	@if [ -n "$(ROOT)" ] && ! { command -v chromium && command -v chromedriver; } >/dev/null; then
	    command -v apt-get >/dev/null || { echo "No Chromium: the tests that need it are left out" >&2; exit 0; }
	    echo "Installing chromium chromium-driver"
	    export DEBIAN_FRONTEND=noninteractive
	    apt-get -qq update
	    apt-get -qq install --no-install-recommends chromium chromium-driver >/dev/null
	fi

# Made anew when the project's dependencies change; the parts of `pip install` that are done already take a second.
.venv/.package: pyproject.toml $(LOCKED)/build.txt $(LOCKED)/project.txt | system
	@$(BIN)/python -c '' 2>/dev/null || { rm -rf .venv; python3 -m venv .venv; }
	echo "Installing the package into .venv"
	$(INSTALL) --requirement $(LOCKED)/build.txt
	$(INSTALL) --requirement $(LOCKED)/project.txt
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

.venv/.development: .venv/.package $(LOCKED)/dev.txt $(LOCKED)/docs.txt
	@echo "Installing the development tools into .venv"
	$(INSTALL) --requirement $(LOCKED)/dev.txt --requirement $(LOCKED)/docs.txt
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

# The tests of the image build it; who only wants the demo needs nothing for that.
test coverage: export IMAGE_TOOLS := $(ROOT)

test: lint browser ## Everything: lint and all tests; kernel tests and those of the image only as root.
	@if [ -n "$(ROOT)" ]; then
	    exec $(BIN)/pytest -q -n 2
	fi
	echo "Not root: the kernel tests are left out"
	$(BIN)/pytest -q -n 2 -m 'not kernel'

coverage: setup browser ## Line coverage of all tests, programs and daemons that they start included; as root; at least 95 %.
	@rm -rf .coverage
	# Programs that tests run as nobody write there too.
	install --directory --mode=1777 .coverage
	$(BIN)/pytest -q -n 2 --cov --cov-report=term --cov-fail-under=95

.venv/.mutation: .venv/.development $(LOCKED)/mutation.txt
	@echo "Installing what makes mutants into .venv"
	$(INSTALL) --requirement $(LOCKED)/mutation.txt
	touch $@

mutation: .venv/.mutation ## Change each line of selection, rules and plan, and see whether a test notices; two hours.
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

# The theme prints an advertisement for its successor otherwise.
docs: export NO_MKDOCS_2_WARNING := 1
docs: setup ## Build the documentation as a site in build/site; a link that leads nowhere is an error.
	@$(BIN)/mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml
	echo "build/site/index.html"

shipped: setup ## Write manual page and completions anew, from the command line.
	@$(BIN)/python .ci/shipped.py

dist: setup ## Build wheel and sdist into dist/ and look at what they say of themselves.
	@rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

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
	for group in build dev mutation bench audit docs; do
	    $$resolve $$agreed --output-file $(LOCKED)/$$group.txt --group $$group
	    agreed+=" --constraint $(LOCKED)/$$group.txt"
	done

audit: .venv/.audit ## Ask for known vulnerabilities of everything that is locked. OPTIONS="--service osv" asks another service.
	@$(BIN)/python .ci/dependencies.py --audit $(OPTIONS)

# The date of the last commit, so that the same source and packages make the same image.
image: ## Build the container image with buildah, podman or docker. BUILDER=docker takes that one.
	@version="$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' kproxy_ipt/__init__.py)"
	builder="$(BUILDER)"
	for known in buildah podman docker; do
	    [ -n "$$builder" ] || ! command -v $$known >/dev/null || builder=$$known
	done
	[ -n "$$builder" ] || { echo "buildah, podman or docker is needed to build an image" >&2; exit 1; }
	export SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
	dated="--timestamp $$SOURCE_DATE_EPOCH"
	case "$$builder" in docker*) dated="--build-arg SOURCE_DATE_EPOCH" ;; esac
	$$builder build --file manifests/image/Containerfile --tag "kproxy-ipt:$$version" --build-arg "VERSION=$$version" \
	    $$dated $(OPTIONS) .

clean: ## Remove what builds and tools leave behind, the virtual environment too.
	@rm -rf .venv build dist ./*.egg-info .coverage mutants
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
