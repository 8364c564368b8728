#!/bin/sh
# What a machine with a GPU tells in at most 9 minutes: tests/gpu, then training and scoring of Pythia-160M and 1.4B.
#
#     sh tests/benchmarks/gpu.sh FOLDER [--dry-run]
#
# It needs no network and no installation, but a Python with torch 2.11 or later and pilekit's other dependencies.
# `allow_older_torch` (tests/older_torch.py), which tests and benchmarks call, lets pilekit train with 2.11.
#
# FOLDER gets a log of each part, the figures as train-*.json and bpb.json, and table.md for docs/benchmarks.md. Each loop
# is written as soon as it is measured, and a part that takes too long is cut, so that the rest is measured too.
# --dry-run: the same lines with a tiny model and three of the loops, also on a CPU, without limits of time.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd) || exit 1
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 PILEKIT_TEST_GPU=1
begun=$(date +%s) limit=535 failed=0
TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) && export TORCHINDUCTOR_CACHE_DIR  # a part that is cut may leave half a file
trap 'rm -rf "$TORCHINDUCTOR_CACHE_DIR"' EXIT

if [ "${2:-}" = --dry-run ]; then
    shapes=pythia-14m kilobytes=10 dry=--dry-run
    set -- --dry-run --warm-up 1 --steps 1 --rows 2 --micro 1 --seq-len 64 --small-vocabulary \
        --variants "blocks, varlen" "CUDA graphs" "bare, labels"
else
    shapes="pythia-160m pythia-1.4b" kilobytes=8000 dry=
    set -- --warm-up 5 --steps 12 --variants blocks step "bare, labels"
fi

part() {  # NAME SECONDS COMMAND ...: run the command for at most so long, and not beyond the limit of all
    name=$1 seconds=$2 left=$((begun + limit - $(date +%s)))
    shift 2
    [ "$left" -lt "$seconds" ] && seconds=$left
    [ -n "$dry" ] && seconds=3600
    if [ "$seconds" -lt 5 ]; then echo "$name: no time is left"; failed=1; return; fi
    timeout -s INT -k 5 "$seconds" "$@" >"$out/$name.log" 2>&1
    status=$?
    echo "$name: ended with status $status, $(($(date +%s) - begun)) s after the start"
    [ "$status" -eq 0 ] || failed=1
}

part tests 130 python3 -m pytest -vv -rf -p no:cacheprovider tests/gpu
for shape in $shapes; do
    part "train-$shape" 180 python3 tests/benchmarks/bench_train.py --gpu --parts loop --shapes "$shape" \
        --figures "$out/train-$shape.json" "$@"
done
part bpb 60 python3 tests/benchmarks/bpb/scoring_on_gpu.py "$out/bpb.json" --shapes $shapes --kilobytes $kilobytes $dry
python3 tests/benchmarks/gpu_table.py "$out" >"$out/table.md" || failed=1
cat "$out/table.md"
exit $failed
