#!/usr/bin/env bash
# What HEAD changes against another revision, as Markdown: parameters, committed results, a small run of both.
#     bash .github/measure.sh origin/main -S train.max_tokens=20480     what makes the run small, as `-S` takes it
# The runs are made in a clone, with this repository's cache; nothing changes here, and only commits count.
set -euo pipefail

base=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "error: $1 is no revision; see git log" >&2; exit 2; }
head=$(git rev-parse HEAD)
small=("${@:2}")
cache=$(dvc cache dir)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The stages that a run's output says were needed, on one line.
needed() {
    sed -n -e "s/^Running stage '\(.*\)':.*/\1/p" -e "s/^Stage '\(.*\)' is cached - .*/\1/p" "$1" | sort -u | paste -sd ' ' -
}

# What a diff command finds, wall-clock figures left out; a sentence where it finds nothing.
table() {
    local rows
    rows=$("$@" before after --md) || return
    rows=$(grep '^|' <<< "$rows" | grep -v '^| metrics/timing.json ') || true
    if [ "$(wc -l <<< "$rows")" -gt 2 ]; then echo "$rows"; else echo "None differs."; fi
}

# The stages whose code, parameters or results in git are not those of dvc.lock, from `dvc status --json`.
# Data is absent here and cannot be compared.
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
git checkout --quiet before -- dvc.lock metrics plots  # so that what needs no run is seen to need none
small_run after
moved=$(table dvc metrics diff)
again=$(needed "$folder/after.log")

# A paragraph is one line: in a comment a line's end breaks it.
printf '### Parameters\n\n%s\n\n### Committed results\n\n%s\n\n' "$params" "$committed"
if [ -n "$stale" ]; then
    printf '**`dvc.lock` was not made with this code and these parameters: %s changed since.** ' "$stale"
    printf 'Run `dvc repro`, and commit `dvc.lock`, `metrics` and `plots`.\n\n'
fi
printf '### A small run of both\n\n%s\n\n' "$moved"
if [ -n "$again" ]; then echo "The change makes these stages run again: $again."; else echo "No stage has to run again."; fi
printf 'Both sides ran with `%s`: enough to see that everything works and what moves, ' "${small[*]}"
printf 'too little to say which side is better.\n'
