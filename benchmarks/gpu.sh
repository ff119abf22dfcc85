#!/usr/bin/env bash
# All measurements that want a GPU, in eight minutes, those that matter most first:
#
#     benchmarks/gpu.sh FOLDER
#
# Every stage has a time limit and a log of its own, and needs none of the others. All files are in
# FOLDER, and `python -m benchmarks.gpu publish FOLDER` makes docs/gpu.md of them.
#
# PYTHON names the interpreter (default: .venv/bin/python, else python3). CLASSIFIER and CLINC name
# a fine-tuned MiniLM and the folder with its rows (valid.tsv, test.tsv); without them their stage
# is left out. DEVICE=cpu QUICK=1 STRETCH=6 tries the script on a machine without a GPU, in short
# settings and with six times the limits.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:?name a folder for the results}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=${WORK:-$folder/work}
device=${DEVICE:-cuda}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
batches="1 16 64 256" lengths="32 128" seconds=0.4 rows="64 512 2048" lines=16384 steps=30 test_rows=454
encoder_programs="eager compile"
if [ -n "${QUICK:-}" ]; then
  batches="1 2" lengths="8" seconds=0.01 rows="8 16" lines=64 steps=2 test_rows=8
  encoder_programs="eager"
fi
rivals="eager"
"$python" -c "import ctranslate2" 2>/dev/null && rivals="eager ctranslate2"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
: >"$folder/stages.tsv"

version=$(git describe --always --dirty 2>/dev/null || cat VERSION 2>/dev/null || echo unknown)
printf '{"version": "%s", "date": "%s"}\n' "$version" "$(date +%F)" >"$folder/about.json"

# stage NAME LIMIT COMMAND...: run it for at most LIMIT seconds, with its log in FOLDER/NAME.log.
stage() {
  local name=$1 limit=$(($2 * ${STRETCH:-1})) start status ended=ok
  shift 2
  start=$(date +%s)
  timeout "$limit" "$@" >"$folder/$name.log" 2>&1
  status=$?
  [ $status = 124 ] && ended="stopped after $limit s"
  [ $status != 0 ] && [ $status != 124 ] && ended="status $status"
  printf '%s\t%s\t%s\n' "$name" "$(($(date +%s) - start))" "$ended" >>"$folder/stages.tsv"
  echo "$name: $ended" >&2
}

# shellcheck disable=SC2086
stage encoder 150 "$python" -m benchmarks.speed bert-base-size --work "$work" --device "$device" \
  --programs $encoder_programs --batches $batches --lengths $lengths --seconds "$seconds" \
  --results "$folder"
if [ -n "${CLASSIFIER:-}" ]; then
  # shellcheck disable=SC2086
  stage minilm 80 "$python" -m benchmarks.speed classifier --work "$work" --device "$device" \
    --classifier "$CLASSIFIER" --clinc "${CLINC:?the folder of its rows}" --programs eager \
    --batches $batches --seconds "$seconds" --test-rows 1000 --results "$folder"
fi
# shellcheck disable=SC2086
stage translator 100 "$python" -m benchmarks.speed translator --work "$work" --device "$device" \
  --programs $rivals --batches $batches --seconds "$seconds" --test-rows "$test_rows" \
  --results "$folder"
# shellcheck disable=SC2086
stage distillation 80 "$python" -m benchmarks.distill_rate --device "$device" --lines "$lines" \
  --rows $rows --steps "$steps" --output "$folder/distill-rate.json"
stage tests 60 "$python" -m pytest -m gpu -p no:cacheprovider tests/gpu
grep -E '^[0-9]+ (passed|failed|skipped)|^FAILED|^SKIPPED' "$folder/tests.log" >&2
"$python" -m benchmarks.gpu table "$folder"
