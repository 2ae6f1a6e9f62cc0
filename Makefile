# Everything a developer or an operator types. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1|/' | sort | awk -F'|' '{printf "  %-14s %s\n", $$1, $$2}'
.PHONY: help

lock: ## resolve requirements/*.in into the pinned, hashed requirements/*.txt
	@for f in base dev; do $(VENV)/bin/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url requirements/$$f.in -o requirements/$$f.txt || exit 1; done
.PHONY: lock
