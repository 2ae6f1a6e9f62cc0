# Everything a developer or an operator types; `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || echo python3)
PY := .venv/bin/python
COMPILE := .venv/bin/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url
# The front end's tools, where Node came from PyPI.
export PATH := $(PATH):$(CURDIR)/.venv/bin
# Tests start hundreds of processes: without bytecode each compiles the project and rewrites its asserts anew.
unexport PYTHONDONTWRITEBYTECODE
# Their matrices are small: the threads of a product wait for each other, and take cores from other tests to do so.
test test-fast test-python test-browser test-faults test-nightly: export OMP_NUM_THREADS = 1
test test-fast test-python test-browser test-faults test-nightly: export OPENBLAS_NUM_THREADS = 1

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

# Each half is one process: a second would import and collect everything again, which costs more than it saves.
FAST = $(PY) -m pytest -q -m "not slow and not nightly" --hypothesis-profile=fast -o cache_dir=var/pytest/$@
test-fast: setup-dev ## what to run while you work: lint, types, engine and web; no browser, nothing slow
	@$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target fast-web fast-engine lint

fast-web:
	$(FAST) tests/config tests/dashboard tests/frontend tests/fuzz tests/playground

fast-engine:
	$(FAST) tests/engine tests/test_package.py

test-faults: setup-dev ## what holds while processes die, clients attack, disks fill and clocks differ; a table last
	@mkdir -p var && rm -f var/fault-figures.md
	FAULT_FIGURES=var/fault-figures.md $(PY) -m pytest -q -m faults -n 2 --dist load tests/faults -k "kills or fills_no_disk"
	FAULT_FIGURES=var/fault-figures.md $(PY) -m pytest -q -m faults tests/faults -k "not kills and not fills_no_disk"

test-nightly: setup-dev ## what takes too long for every change, or depends on an idle machine
	$(PY) -m pytest -m nightly tests

# Many tests have processes, clocks and other people's sockets in them, and two cores are not enough for all at once: what
# fails in the crowd is tried once more when everything else is done, and the output shows both. What fails twice has failed.
define pytest
@rm -f var/pytest/$(1)/passed
$(PY) -m pytest -o cache_dir=var/pytest/$(1) $(2)
@touch var/pytest/$(1)/passed
endef
define once-more
@test -e var/pytest/$(1)/passed || { echo "trying once more, by themselves, what has failed of $(1)"; \
	$(PY) -m pytest -o cache_dir=var/pytest/$(1) -p no:xdist --last-failed --last-failed-no-failures none -m "not nightly" tests; }
endef

# The browser waits more than it computes: the other tests, which have to stand back, take what it leaves.
test: setup-dev ## every test that this machine can run, to the end even where one fails
	@$(MAKE) --no-print-directory --keep-going --jobs=3 test-page test-browser test-python || \
		$(MAKE) --no-print-directory --keep-going test-page once-more-browser once-more-python

test-page: setup-dev
	npm run --silent check
	npm test --silent

test-browser: setup-dev
	$(call pytest,browser,--durations=10 -m "not nightly" tests/e2e)

# Three, as many tests wait; those of most seconds first, so that no process is left alone with one at the end.
LONGEST = tests/faults tests/kernels tests/reference tests/tools
OTHERS = $(filter-out $(LONGEST) tests/e2e tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) tests/test_package.py
test-python: PY := nice -n 5 $(PY)
test-python: setup-dev
	$(call pytest,python,-n 3 --dist loadfile --no-loadscope-reorder --durations=20 -m "not nightly" $(LONGEST) $(OTHERS))

once-more-browser once-more-python: once-more-%:
	$(call once-more,$*)

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

bench-pairs: ## decode of another commit and of this tree, in turn, with tokens (ARGS="REV --model laneformer-2b")
	@python=$$([ -x $(PY) ] && echo $(PY) || echo $(PYTHON)); exec $$python -m tools.bench_pairs $(ARGS)

bench-packed: setup-dev ## packed files (Q8_0, Q4_K_M) of one shape beside llama.cpp, in turn
	$(PY) -m tools.bench_packed $(ARGS)

bench-streams: setup-dev ## 1, 4 and 8 streams on the CPU, in turn (ARGS="--threads 1")
	$(PY) -m tools.bench_streams $(ARGS)

bench-peers: ## PyTorch, llama.cpp and Megakernels beside ours on a GPU, in turn, in one run (ARGS="--peers torch")
	@python=$$([ -x $(PY) ] && echo $(PY) || echo $(PYTHON)); exec $$python -m tools.bench_peers $(ARGS)

bench-product: setup ## what a user of the whole product gets on this machine, kills included (ARGS="--backend cpu")
	$(PY) -m tools.bench_product $(ARGS)

results: setup ## write the tables of results in README and docs from benchmarks/
	@$(PY) -m tools.results_table

link-latency: setup-dev ## draw what a slow link costs with and without delay, on virtual devices
	$(PY) -m tools.plot_link_latency

web-path: setup-dev ## measure what the web adds at 3,000 tok/s, one stream and 40
	$(PY) -m tools.measure_web_path

screenshots: setup-dev ## take the README's pictures from the running product
	$(PY) -m tools.screenshots

compose-check: ## build the production stack and drive it (needs a Docker Engine; PORT=8199)
	@$(PYTHON) tools/compose_check.py

lock: ## resolve requirements/*.in into the pinned, hashed requirements/*.txt
	@$(COMPILE) requirements/engine.in requirements/web.in -o requirements/base.txt
	@$(COMPILE) -c requirements/base.txt requirements/dev.in -o requirements/dev.txt
	@$(COMPILE) -c requirements/base.txt -c requirements/dev.txt requirements/gpu.in -o requirements/gpu.txt
	@for f in node peers; do $(COMPILE) requirements/$$f.in -o requirements/$$f.txt || exit 1; done

clean: ## remove what was built, keep models and the database
	rm -rf .venv node_modules static/dist kernels/build var/static

.PHONY: help run admin setup setup-dev python test test-page test-browser test-python test-fast fast-web fast-engine test-faults test-nightly lint format check-peers bench-cpu bench-pairs bench-packed bench-node bench-peers bench-product bench-streams results link-latency web-path screenshots compose-check lock clean
