# Everything a developer or an operator types; `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || echo python3)
PY := .venv/bin/python
# The front end's tools, where Node came from PyPI.
export PATH := $(PATH):$(CURDIR)/.venv/bin

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

run: setup ## set up what is missing, start everything, print the URL (PORT=8000, MONOLANE_HOME=var)
	@exec $(PY) -m tools.supervisor

admin: setup ## make an administrator for /admin/
	@$(PY) manage.py createsuperuser

setup: python ## what `make run` needs: packages, weights, front end
	@$(PYTHON) tools/setup.py run

setup-dev: python ## the same, and what the checks need: linters, PyTorch, Chromium
	@$(PYTHON) tools/setup.py dev

python:
	@command -v $(PYTHON) >/dev/null || { echo "setup: Python 3.11 is missing: install python3.11 and python3.11-venv" >&2; exit 1; }

test: setup-dev ## every test that this machine can run
	npm run --silent check
	npm test --silent
	$(PY) -m pytest -n 2 --dist loadfile tests --ignore=tests/e2e
	$(PY) -m pytest tests/e2e

lint: setup-dev ## formatting, types, who imports whom
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports

format: ## rewrite Python in the project's style
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

check-peers: setup-dev ## compare greedy output with llama.cpp on the same file (builds it first)
	$(PY) -m tools.check_peers

bench-cpu: setup-dev ## the CPU kernel beside llama.cpp, same file, same run, both orders
	$(PY) -m tools.bench_cpu

bench-node: ## what this node's GPUs reach, checks first, in under 8 minutes (ARGS=--quick, or ARGS="--backend cpu")
	@python=$$([ -x $(PY) ] && echo $(PY) || echo $(PYTHON)); \
	$$python -c "import numpy" 2>/dev/null || { $(MAKE) --no-print-directory setup && python=$(PY); }; \
	exec $$python -m tools.bench_node $(ARGS)

results: setup ## write the tables of results in README and docs from benchmarks/
	@$(PY) -m tools.results_table

link-latency: setup-dev ## draw what a slow link costs with and without delay, on virtual devices
	$(PY) -m tools.plot_link_latency

web-path: setup-dev ## measure what the web adds at 3,000 tok/s, one stream and 40
	$(PY) -m tools.measure_web_path

screenshots: setup-dev ## take the README's pictures from the running product
	$(PY) -m tools.screenshots

lock: ## resolve requirements/*.in into the pinned, hashed requirements/*.txt
	@for f in base dev gpu node peers; do .venv/bin/uv pip compile -q --python-version 3.11 --generate-hashes \
	    --no-emit-index-url requirements/$$f.in -o requirements/$$f.txt || exit 1; done

clean: ## remove what was built, keep models and the database
	rm -rf .venv node_modules static/dist kernels/build var/static

.PHONY: help run admin setup setup-dev python test lint format check-peers bench-cpu bench-node results link-latency web-path screenshots lock clean
