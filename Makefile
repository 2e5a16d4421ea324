# make: set up and run the pipeline.  make help: all targets.  Nothing else needs to be installed.
PYTHON ?= python3
# The make of macOS finds programs in the exported PATH only if a shell starts them, and it skips the default one.
SHELL := bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# DVC asks for the name of the user, which the users of a container may lack.
USER ?= $(shell id -u)
export USER
# pip installs torch, because its settings may name another build. uv installs the rest in a tenth of the time, or pip if
# uv cannot. An interrupted uv leaves incomplete packages that it takes for complete, so all are then installed again.
# Only the third of the modules that is imported is compiled; without bytecode, each start would compile it.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = .venv/bin/python -m pip install --disable-pip-version-check --no-compile
UV_INSTALL = $(PIP_INSTALL) --quiet uv==0.13.9 && echo torch > .venv/begun && .venv/bin/uv pip install \
	--python .venv/bin/python --excludes .venv/begun $(if $(wildcard .venv/begun),--reinstall)

# Processes of the tests: 1.5 times the cores, because tests wait a third of their time.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))
PYTEST = python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: all back help table test test-slow test-numerics prove report lint bench-gpu clean
all: .venv/ready ## Run the pipeline: dvc repro; then say whether it has the bits of the committed run
	@# If a name selects no preset, DVC's message would not list the names.
	@python src check_parameters
	@# This compiles the loops of exact numerics while text is fetched and tokenized; training would wait for it.
	@nice python src verify --processor short > /dev/null 2>&1 &
	dvc repro
	@python src verify

# After a run that a stage rejected, git may overlook a changed file, because DVC wrote it twice within a second with the
# same size. A new time makes git compare the contents.
PARAMETERS = params.yaml presets.yaml sources.yaml runtime.yaml
back: ## Go back to the committed parameters, dvc.lock, metrics, plots and data; not to the committed code: `git restore src`
	@if [ -n "$$(git ls-files --unmerged)" ]; then \
		echo 'error: a merge left conflicts; run `git checkout --ours dvc.lock metrics plots && dvc repro`' \
			'and commit the merge, or undo it: `git checkout --ours dvc.lock metrics plots && git merge --abort`' >&2; exit 1; fi
	@# A run in progress would be recorded with the committed parameters and results.
	@python src check_idle
	@touch -c $(PARAMETERS) dvc.lock metrics/* plots/*
	@# Unstage first: restoring both at once would delete new files that are staged.
	@git restore --staged dvc.lock metrics plots $(PARAMETERS)
	git restore dvc.lock metrics plots $(PARAMETERS)
	@# Before the first run there is no data yet.
	@dvc checkout --allow-missing || { \
		echo 'error: DVC does not delete the files above, because its cache lacks them;' \
			'`python src verify` prints a command for each' >&2; exit 1; }
	@changed=$$(git status --short) && if [ -n "$$changed" ]; then \
		printf '%s\n' 'These files still differ from the last commit; `git restore src` brings back its code:' "$$changed"; fi
	@git symbolic-ref --quiet HEAD > /dev/null || echo 'No branch is checked out, as after a killed `dvc exp run`' \
		'(docs/troubleshooting.md): run `git switch main`, or name your branch'

help: ## Print the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F '|' '{ printf "%-14s  %s\n", $$1, $$2 }'

test: .venv/ready-dev ## Run the tests
	$(PYTEST) -m "not slow" tests extras

SLOW = tests/repository tests/[!r]*/ extras  # the longest files first
test-slow: .venv/ready-dev ## Run the slow tests: kills, full disks, whole pipelines
	$(PYTEST) -m slow $(SLOW)

# Numerical tests under other instructions: those of other processors, for oneDNN's products, torch's own loops and ours.
NUMERICS = tests/lm/model tests/lm/exact tests/lm/train/test_step.py tests/lm/train/test_optimizers.py tests/lm/train/test_ngram_embeddings.py \
	tests/lm/evaluate/test_generation.py tests/tools/test_export.py tests/tools/test_hugging_face.py tests/tools/test_processor.py
SETTINGS = NATIVE=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 \
	ATEN_CPU_CAPABILITY=default NUMBA_CPU_NAME=generic
test-numerics: .venv/ready-dev ## Run the numerical tests with the instructions of six kinds of processors
	set -e; for setting in $(SETTINGS); do echo $$setting; env $$setting $(PYTEST) $(NUMERICS); done

prove: .venv/ready ## Train a small run, about a minute, and compare its bits with the committed ones
	python src verify --processor

# Columns that nobody compares, and scores that other columns hold in another unit.
DROPPED = .*/|.*_loss|bpb_se|Created|Executor|sources|local|bytes|clean|contaminated|parameters|tokens_seen
table: ## Print the finished experiments of this commit with what differs, and write all their columns: experiments.csv
	@dvc exp show --csv --hide-queued --hide-failed > experiments.csv
	@[ -n "$$(dvc exp list)" ] || echo 'No experiment started from this commit; `dvc exp list -A` lists those of other commits'
	@dvc exp show --no-pager --only-changed --hide-workspace --hide-queued --hide-failed --drop '$(DROPPED)'

report: .venv/ready ## Write one page with curves, metrics, samples and provenance, also during a run: report.html
	python src report

lint: .venv/ready-dev ## Check style, formatting, and types in src/ and extras/
	ruff check .
	ruff format --check .
	basedpyright

bench-gpu: .venv/ready ## Measure training steps of some models on a GPU, in eight minutes: gpu.json
	PYTHONPATH=src:benchmarks python benchmarks/speed/gpu.py

clean: ## Delete the training checkpoints of all runs (.runs)
	rm -rf .runs

# Environments.

.venv/ready: requirements.txt requirements/bits.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: this is Python %d.%d; it must be 3.11 or newer; try make PYTHON=python3.12" % sys.version_info[:2])'
	.venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null 2>&1 || \
		$(PYTHON) -m venv --clear .venv
	$(PIP_INSTALL) "$$(grep -o '^torch==[0-9.]*' requirements/bits.txt)"
	$(UV_INSTALL) -r requirements.txt || $(PIP_INSTALL) -r requirements.txt
	rm -f .venv/begun
	touch $@

.venv/ready-dev: .venv/ready $(wildcard requirements/*.txt)
	$(UV_INSTALL) -r requirements.txt -r requirements/dev.txt || $(PIP_INSTALL) -r requirements.txt -r requirements/dev.txt
	rm -f .venv/begun
	touch $@
