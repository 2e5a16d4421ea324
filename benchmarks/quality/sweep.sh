#!/usr/bin/env bash
# Queue the experiments of a file, two at a time, one thread each; when all have ended, run a command on them.
#
#     benchmarks/quality/sweep.sh optimizers.txt python src compare …
#
# Each line of the file is a name and the options of `dvc exp run --queue`, which may hold a grid. The names begin with
# the file's own name. Runs with the same parameters as before come from DVC's cache.
set -euo pipefail
unset DVC_ROOT # set by DVC where this is a stage
list=$(realpath "$1") prefix=$(basename "$1" .txt)
shift
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

state_of_queue() { dvc queue status | awk -v prefix="^$prefix-" '$2 ~ prefix { print $2, $NF }'; }

former=$(dvc exp list --all-commits --name-only | grep "^$prefix-" || true)
[ -z "$former" ] || dvc exp remove --quiet $former
states=$(state_of_queue)
[ -z "$states" ] || dvc queue remove --quiet $(awk '{ print $1 }' <<<"$states") # DVC refuses this while one of them runs

while read -r name options; do
	case $name in "" | "#"*) continue ;; esac
	dvc exp run --queue --name "$prefix-$name" $options </dev/null
done <"$list"

dvc queue start --jobs 2 | cat # wait until its workers have ended
failed=$(state_of_queue | awk '$2 != "Success"')
if [ -n "$failed" ]; then
	echo "not finished, see \`dvc queue logs NAME\`:" $failed >&2
	exit 1
fi
"$@"
