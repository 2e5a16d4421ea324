# make: set up and run the pipeline.  make test: set up and run the tests.  Nothing else is needed.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: all test test-slow lint clean-runs clean-venv
all: .venv/ready
	dvc repro
	@echo 'metrics that differ from the committed ones (none: the same bits):'
	@dvc metrics diff --targets metrics/data.json metrics/train.json metrics/eval.json

test: .venv/ready-dev
	python -m pytest -q -m "not slow" tests

test-slow: .venv/ready-dev
	python -m pytest -q -m slow tests

lint: .venv/ready-dev
	ruff check .
	ruff format --check .

clean-runs:
	rm -rf .runs

clean-venv:
	rm -rf .venv

.venv/ready: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: Python %d.%d found, 3.11 or newer needed; try make PYTHON=python3.12" % sys.version_info[:2])'
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv/ready-dev: .venv/ready requirements-dev.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	touch $@
