# make: set up and run the pipeline.  make test: set up and run the tests.  Nothing else needs to be installed.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Processes of the tests: half as many again as cores, for tests wait a third of their time.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))

.PHONY: all test test-slow test-lm-eval test-gguf test-cloud mutants reproduce prove report figures record speedrun first-experiment stories phenomena scaling bench bench-gpu rounding measure lint clean-runs clean-venv test-cluster torture
all: .venv/ready
	dvc repro
	@echo 'metrics that differ from the committed ones (none: the same bits):'
	@dvc metrics diff --targets metrics/data.json metrics/train.json metrics/eval.json

test: .venv/ready-dev
	python -m pytest -q -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests extras

test-slow: .venv/ready-dev
	python -m pytest -q -m slow -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests extras

# The tests that need lm-eval, which `make test` skips where it is not installed.
test-lm-eval: .venv/ready-dev
	python -m pip install --quiet --disable-pip-version-check -r requirements/lm-eval.txt
	python -m pytest -q extras/lm_eval/tests/test_lm_eval.py

# The tests that need llama.cpp, which pip compiles: several minutes.
test-gguf: .venv/ready-dev
	python -m pip install --quiet --disable-pip-version-check -r requirements/gguf.txt
	python -m pytest -q extras/gguf/tests/test_export_gguf.py

# The tests of docs/sky.yaml, with SkyPilot's parser in an environment of its own.
test-cloud: .venv/cloud/ready .venv/ready-dev
	python -m pytest -q tests/repository/test_cloud.py

# The documented Slurm jobs on a Slurm of this machine, which root installs if it is missing: several minutes.
test-cluster: .venv/ready-dev
	PYTHONPATH=src:tests python -m support.slurm
	python -m pytest -q -m slow tests/cluster extras/tokenize_cluster/tests/test_cluster.py

# Remove one safeguard at a time and check that a test fails.
mutants: .venv/ready-dev
	PYTHONPATH=src:tests python tests/mutants.py

# Power cuts, failing calls, signals, a long run, hostile files: two hours, benchmarks/results/torture/.
TORTURE = crash_states failing_calls hostile_files signal_moments concurrency long_life
torture: .venv/ready-dev
	set -e; for name in $(TORTURE); do \
		OMP_NUM_THREADS=1 PYTHONPATH=src:tests python tests/torture/$$name.py; done

# Run the committed pipeline twice from scratch and compare the outputs byte by byte: metrics/repro.json.
reproduce: .venv/ready
	python src reproduce

# Train a small run, about a minute, and compare its bits with the committed ones.
prove: .venv/ready
	python src prove

# Write one page with the curves, metrics, samples and their provenance, also during a run: report.html.
report: .venv/ready
	python src report

# Write every figure of README.md, docs/ and data/README.md from committed results.
FIGURES = PYTHONPATH=src:benchmarks python benchmarks/figures.py
figures: .venv/ready
	$(FIGURES)

# Record the default run of the workspace, then write the pages.
record: .venv/ready
	python benchmarks/record_run.py workspace benchmarks/results/default.json
	$(MAKE) figures

# Run the README's first experiment: benchmarks/results/first_experiment.txt.
first-experiment: .venv/ready
	dvc exp run --temp --force -n first -S train.seq_len=512
	dvc metrics diff HEAD first > benchmarks/results/first_experiment.txt
	$(MAKE) figures

# Train on stories of known entropy, as an experiment: benchmarks/results/stories.json.
STORIES = -S data.source=stories -S presets.yaml:tokenizers.bpe.vocab_size=4096 -S train.seq_len=256 \
	-S train.batch_tokens=2048 -S train.micro_batch_tokens=2048 -S train.peak_lr=0.014 \
	-S train.decay_share=0.5 -S train.beta1=0.9 -S train.beta2=0.99 -S presets.yaml:models.tiny.sliding_window=64 \
	-S train.sampled_vocab_size=null -S train.max_tokens=2662400 \
	-S eval.stride_fraction=0.125
stories: .venv/ready
	dvc exp run --temp --force -n stories $(STORIES)
	python benchmarks/record_run.py stories benchmarks/results/stories.json

# Split the excess of `make stories`, and of four times its tokens, by phenomenon: phenomena.json and phenomena.png.
phenomena: .venv/ready
	dvc exp run --temp --force -n stories_long $(STORIES) -S train.max_tokens=10649600
	PYTHONPATH=src:benchmarks python benchmarks/phenomena.py stories stories_long

# Train the recipe of params.yaml for one minute and print its rank among the recorded recipes.
speedrun: .venv/ready
	PYTHONPATH=src:benchmarks python benchmarks/speedrun.py

# Fit a scaling law to six sizes and three budgets: benchmarks/results/scaling.md, .json and .png.
scaling: .venv/ready
	benchmarks/scaling_sweep.sh 2

# Measure against named peers on an idle machine, which takes hours; then write the table and the figure.
bench: .venv/bench/ready
	set -e; for name in tokenizing batches train_step time_to_loss dvc_overhead generate; do \
		PYTHONPATH=src .venv/bench/bin/python benchmarks/$$name.py; done
	PYTHONPATH=src .venv/bench/bin/python benchmarks/tokenizing.py --megabytes 1260 --peers datasets_batched \
		--memory_megabytes --name tokenizing_large
	ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 PYTHONPATH=src python benchmarks/train_step.py --only 30m \
		--out benchmarks/results/train_step_without_amx.json
	PYTHONPATH=src:benchmarks python benchmarks/busy_cores.py
	PYTHONPATH=src:benchmarks python benchmarks/speedrun.py --record --seeds 1 2 3
	PYTHONPATH=src python benchmarks/cross_entropy.py
	PYTHONPATH=src python benchmarks/large_corpus.py
	PYTHONPATH=src python benchmarks/summarize.py
	$(FIGURES)

# Measure how far rounding moves the loss in fast numerics, about 15 minutes: benchmarks/results/tolerance.json and fast.json.
rounding: .venv/ready
	PYTHONPATH=src python benchmarks/tolerance.py --tokens 153600
	dvc exp run --temp --force -n fast -S train.numerics=fast -S train.dtype=bfloat16
	python benchmarks/record_run.py fast benchmarks/results/fast.json

# Measure on a CUDA device: benchmarks/results/gpu_step.json, gpu_cross_entropy.json and gpu_batches.json.
bench-gpu: .venv/ready
	PYTHONPATH=src python benchmarks/gpu_step.py
	PYTHONPATH=src python benchmarks/cross_entropy.py --device cuda --out benchmarks/results/gpu_cross_entropy.json
	PYTHONPATH=src python benchmarks/batches.py --out benchmarks/results/gpu_batches.json

# Report in Markdown what HEAD changes against BASE, with a small run of both, as for a pull request.
BASE = origin/main
SMALL = -S data.source=stories -S presets.yaml:sources.stories.fetch.num_documents=300 \
	-S presets.yaml:sources.stories.fetch.num_validation_documents=30 -S tokenizer.name=bpe -S presets.yaml:tokenizers.bpe.vocab_size=400 \
	-S model.name=tiny -S train.init_from=data/init -S train.max_tokens=20480 -S train.warmup_steps=2 \
	-S train.eval_every_tokens=10240 -S train.eval_tokens=4096 -S eval.sample_tokens=16
measure: .venv/ready
	@bash .github/measure.sh "$(BASE)" $(SMALL)

# Style, formatting, and types in src/.
lint: .venv/ready-dev
	ruff check .
	ruff format --check .
	basedpyright

clean-runs:
	rm -rf .runs .parts

clean-venv:
	rm -rf .venv

.venv/ready: requirements.txt requirements/bits.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: Python %d.%d found, 3.11 or newer needed; try make PYTHON=python3.12" % sys.version_info[:2])'
	.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

.venv/ready-dev: .venv/ready requirements/dev.txt requirements/cluster.txt requirements/s3.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements/dev.txt
	touch $@

.venv/cloud/ready: .venv/ready requirements/cloud.txt
	.venv/cloud/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m venv --clear .venv/cloud
	.venv/cloud/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/cloud.txt
	touch $@

# The peers of the benchmarks, in a separate environment that also sees the packages of the pipeline.
.venv/bench/ready: .venv/ready requirements/bench.txt requirements/cluster.txt
	.venv/bench/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m venv --clear .venv/bench
	.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$(.venv/bench/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pipeline.pth
	.venv/bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/bench.txt
	touch $@
