#!/usr/bin/env bash
# All measurements that want a GPU, in eight minutes, those that matter most first:
#
#     benchmarks/gpu.sh FOLDER
#
# Models are made and compressed side by side, and the tests run beside them; then stages are timed
# one after another.
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
batches="1 16 64 256" lengths="32 128" seconds=0.2 rows="64 512 2048" lines=16384 steps=20 test_rows=454
encoder_programs="eager compile"
if [ -n "${QUICK:-}" ]; then
  batches="1 2" lengths="8" seconds=0.01 rows="8 16" lines=64 steps=2 test_rows=8
  encoder_programs="eager"
fi
rivals="eager"
# It computes on a GPU with CUDA 12 alone, and finds that out late.
wanted="import ctranslate2"
[ "$device" = cuda ] && wanted="$wanted, ctypes; ctypes.CDLL('libcublas.so.12')"
"$python" -c "$wanted" 2>/dev/null && rivals="eager ctranslate2"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
: >"$folder/stages.tsv"

version=$(git describe --always --dirty 2>/dev/null || cat VERSION 2>/dev/null || echo unknown)
printf '{"version": "%s", "date": "%s"}\n' "$version" "$(date +%F)" >"$folder/about.json"

# stage NAME LIMIT COMMAND...: run it for at most LIMIT seconds, with its log in FOLDER/NAME.log.
stage() {
  local name=$1 limit=$(($2 * ${STRETCH:-1})) start status ended=ok
  shift 2
  start=$(date +%s)
  timeout -k 5 "$limit" "$@" >"$folder/$name.log" 2>&1
  status=$?
  [ $status = 124 ] && ended="stopped after $limit s"
  [ $status != 0 ] && [ $status != 124 ] && ended="status $status"
  printf '%s\t%s\t%s\n' "$name" "$(($(date +%s) - start))" "$ended" >>"$folder/stages.tsv"
  echo "$name: $ended" >&2
}

# speed STAGE LIMIT MODEL OPTION...: make, compress or time a model.
speed() {
  local name=$1 limit=$2 model=$3
  shift 3
  stage "$name" "$limit" "$python" -m benchmarks.speed "$model" --work "$work" --device "$device" \
    --results "$folder" --no-fresh "$@"
}

OMP_NUM_THREADS=4 speed prepare-encoder 150 bert-base-size --prepare &
prepared=$!
OMP_NUM_THREADS=4 speed prepare-translator 150 translator --prepare --test-rows "$test_rows" &
prepared="$prepared $!"
if [ -n "${CLASSIFIER:-}" ]; then
  OMP_NUM_THREADS=4 speed prepare-minilm 150 classifier --prepare --classifier "$CLASSIFIER" \
    --clinc "${CLINC:?the folder of its rows}" &
  prepared="$prepared $!"
fi
workers=""
"$python" -c "import xdist" 2>/dev/null && workers="-n 4"
# shellcheck disable=SC2086
OMP_NUM_THREADS=2 stage tests 150 "$python" -m pytest -m gpu -p no:cacheprovider tests/gpu $workers &
# shellcheck disable=SC2086
wait $prepared $!
grep -E '^[0-9]+ (passed|failed|skipped)|^FAILED|^SKIPPED' "$folder/tests.log" >&2

# shellcheck disable=SC2086
speed encoder 110 bert-base-size --programs $encoder_programs --batches $batches \
  --lengths $lengths --seconds "$seconds"
# shellcheck disable=SC2086
speed translator 70 translator --programs $rivals --batches $batches --seconds "$seconds" \
  --test-rows "$test_rows"
# shellcheck disable=SC2086
stage distillation 100 "$python" -m benchmarks.distill_rate --device "$device" --lines "$lines" \
  --rows $rows --steps "$steps" --output "$folder/distill-rate.json"
if [ -n "${CLASSIFIER:-}" ]; then
  # shellcheck disable=SC2086
  speed minilm 60 classifier --classifier "$CLASSIFIER" --clinc "$CLINC" --programs eager \
    --batches $batches --seconds "$seconds" --test-rows 1000
fi
"$python" -m benchmarks.gpu table "$folder"
