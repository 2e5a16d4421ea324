#!/usr/bin/env bash
# Compare HEAD with another revision, as Markdown: parameters, committed results, and a small run of both.
#     .github/measure.sh origin/main
# The runs take place in a clone with this repository's cache. Nothing changes here; uncommitted changes are ignored.
set -euo pipefail

base=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "error: $1 is not a revision; see git log" >&2; exit 2; }
head=$(git rev-parse HEAD)
small=( # parameters that make the run small
    -S data.source=torch_headers -S sources.yaml:sources.torch_headers.train.num_chars=200000
    -S sources.yaml:sources.torch_headers.validation.num_chars=20000
    -S tokenizer.name=bpe -S presets.yaml:tokenizers.bpe.vocab_size=400
    -S model.name=tiny -S train.init_from=data/init -S train.max_tokens=20480 -S train.warmup_steps=2
    -S train.eval_every_tokens=10240 -S train.eval_tokens=4096 -S eval.sample_tokens=16
)
export PATH="$PWD/.venv/bin:$PATH"
cache=$(dvc cache dir)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Print the stages that a run had to run, on one line.
needed() {
    sed -n -e "s/^Running stage '\(.*\)':.*/\1/p" -e "s/^Stage '\(.*\)' is cached - .*/\1/p" "$1" | sort -u | paste -sd ' ' -
}

# Print the table of a diff command, or a sentence if there are no differences.
table() {
    local rows
    rows=$("$@" before after --md) || return
    rows=$(grep '^|' <<< "$rows") || true
    if [ "$(wc -l <<< "$rows")" -gt 2 ]; then echo "$rows"; else echo "No differences."; fi
}

# Print the stages whose code, parameters or results in git differ from dvc.lock, from `dvc status --json`.
# The data is missing in the clone and cannot be compared.
not_of_lock() {
    python -c '
import json, sys
for stage, changes in json.load(sys.stdin).items():
    files = [names for change in changes if change != "changed command" for names in change.values()]
    states = {str(state) for names in files for state in names.values()} - {"deleted", "not in cache"}
    if states or "changed command" in changes:
        print(stage)'
}

small_run() {
    dvc exp run "${small[@]}" | tee "$folder/$1.log" >&2
    git add --all
    git commit --quiet --allow-empty --message "A small run"
    git tag --force "$1" > "$folder/tag.log"
}

git clone --quiet --shared --no-tags --no-checkout . "$folder/clone"
cd "$folder/clone"
git config user.name measure
git config user.email measure@localhost
git tag before "$base"
git tag after "$head"

git checkout --quiet --detach after
dvc config --local cache.dir "$cache"
params=$(table dvc params diff)
committed=$(table dvc metrics diff)
stale=$(dvc status --json | not_of_lock | paste -sd ' ' -)

git checkout --quiet --detach before
small_run before
git checkout --quiet --force --detach "$head"
git checkout --quiet before -- dvc.lock metrics plots  # so that DVC skips stages that did not change
small_run after
moved=$(table dvc metrics diff)
again=$(needed "$folder/after.log")

# Write each paragraph on one line, because GitHub breaks lines in comments.
printf '### Parameters\n\n%s\n\n### Committed results\n\n%s\n\n' "$params" "$committed"
if [ -n "$stale" ]; then
    printf '**`dvc.lock` was not made with this code and these parameters: changed since: %s.** ' "$stale"
    printf 'Run `dvc repro`, and commit `dvc.lock`, `metrics` and `plots`.\n\n'
fi
printf '### A small run of both\n\n%s\n\n' "$moved"
if [ -n "$again" ]; then echo "The change reruns these stages: $again."; else echo "The change reruns no stage."; fi
printf 'Both sides ran with `%s`. This shows that everything works and which figures change. ' "${small[*]}"
printf 'It is too small to show which side is better.\n'
