#!/usr/bin/env bash
# Train six model sizes with three token budgets each on stories, whose entropy is known; then fit a scaling law.
#
#     benchmarks/scaling_sweep.sh [RUNS_AT_ONCE]     # default: 2; each run uses OMP_NUM_THREADS=1 thread
#
# Each call starts over; runs with the same parameters as before come from DVC's cache.
# Set SOURCE, WIDTHS, BUDGETS and OUT for other text or a smaller trial.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
at_once=${1:-2}
widths=${WIDTHS:-192 144 96 56 32 16} # longest runs first, so that the last ones to finish are short
budgets=${BUDGETS:-153600,460800,1382400}
out=${OUT:-benchmarks/results/scaling}

data=(-S "data.source=${SOURCE:-stories}" -S presets.yaml:tokenizers.bpe.vocab_size=1024)
recipe=(-S train.seq_len=256 -S train.batch_tokens=1024 -S train.micro_batch_tokens=1024 -S train.warmup_steps=20 -S train.decay_share=0.5 -S train.beta1=0.9 -S train.beta2=0.95 -S train.sampled_vocab_size=null -S eval.stride_fraction=0.5 -S eval.num_samples=1)

# Four layers of four heads, two key/value heads; the rest as in the model `tiny`.
# The learning rate is proportional to 1/sqrt(width).
shape() {
	local width=$1 head=$(($1 / 4)) of=presets.yaml:models.tiny
	echo "-S $of.n_layer=4 -S $of.sliding_window=64 -S $of.n_head=4 -S $of.n_kv_head=2 -S $of.d_model=$width -S $of.head_dim=$head -S $of.query_scale=$head -S $of.d_ff=$(((width * 8 / 3 + 4) / 8 * 8))" \
		"-S train.peak_lr=$(awk "BEGIN { printf \"%.4f\", 0.014 * sqrt(192 / $width) }")"
}

state_of_queue() { dvc queue status | awk '$2 ~ /^scaling-w/ { print $2, $NF }'; }
count() { grep -cE " ($1)\$" <<<"$states" || true; }

former=$(dvc exp list --all-commits --name-only | grep '^scaling-w' || true)
[ -z "$former" ] || dvc exp remove --quiet $former
states=$(state_of_queue)
[ -z "$states" ] || dvc queue remove --quiet $(awk '{ print $1 }' <<<"$states") # DVC refuses this while one of them runs

dvc exp run --temp --name data-of-scaling "${data[@]}" audit # make text and tokens once for all runs
dvc exp remove --quiet data-of-scaling
for width in $widths; do
	dvc exp run --queue --name "scaling-w$width" "${data[@]}" "${recipe[@]}" $(shape "$width") \
		-S "train.max_tokens=$budgets"
done

states=$(state_of_queue)
total=$(count Queued)
dvc queue start --jobs "$at_once"
until [ "$(count 'Success|Failed')" -eq "$total" ]; do
	sleep 15
	states=$(state_of_queue) || continue # two readers of the queue can collide
	echo "$(date +%T)  $(count Success) of $total done, $(count Running) running, $(count Failed) failed"
done
dvc queue stop --quiet # stop workers that are still waiting
if [ "$(count Failed)" -gt 0 ]; then
	echo "failed, see \`dvc queue logs NAME\`:" $(awk '$2 == "Failed" { print $1 }' <<<"$states") >&2
	exit 1
fi
python src scaling 'scaling-w*' --predict_flops 1e15 --out "$out"
