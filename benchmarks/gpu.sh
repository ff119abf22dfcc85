#!/usr/bin/env bash
# All measurements that want a GPU, in eight minutes, those that matter most first:
#
#     benchmarks/gpu.sh FOLDER [STAGE ...]
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
#
# TEXT names a file with an English sentence a line: with it the stage `training` compresses the
# bundled translator and distills it for seven epochs, tested on the pairs in TEST. That takes up to
# six minutes more; name the stage to run it alone.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:?name a folder for the results}
for name in "${@:2}"; do
  case $name in
    encoder | translator | distillation | minilm | tests) ;;
    training) : "${TEXT:?name the file with its text}" ;;
    *) echo "there is no stage $name" >&2 && exit 2 ;;
  esac
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=${WORK:-$folder/work}
device=${DEVICE:-cuda}
[ -z "${CLASSIFIER:-}" ] || : "${CLINC:?name the folder of its rows}"
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
batches="1 16 64 256" lengths="32 128" seconds=0.2 rows="64 512 2048" lines=16384 steps=20 test_rows=454
epochs=7
encoder_programs="eager compile"
if [ -n "${QUICK:-}" ]; then
  batches="1 2" lengths="8" seconds=0.01 rows="8 16" lines=64 steps=2 test_rows=8
  epochs=1
  encoder_programs="eager"
fi
rivals="eager"
# It computes on a GPU with CUDA 12 alone, and finds that out late.
wanted="import ctranslate2"
[ "$device" = cuda ] && wanted="$wanted, ctypes; ctypes.CDLL('libcublas.so.12')"
"$python" -c "$wanted" 2>/dev/null && rivals="eager ctranslate2"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
[ $# -gt 1 ] || : >"$folder/stages.tsv"

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
  [ $status = 137 ] && [ $(($(date +%s) - start)) -ge "$limit" ] && ended="stopped after $limit s"
  [ $status != 0 ] && [ "$ended" = ok ] && ended="status $status"
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

# wants STAGE: whether it is named, or none is.
names=" ${*:2} "
wants() {
  [ "$names" = "  " ] || [[ "$names" = *" $1 "* ]]
}

prepared=""
if wants encoder; then
  OMP_NUM_THREADS=4 speed prepare-encoder 140 bert-base-size --prepare &
  prepared="$prepared $!"
fi
if wants translator; then
  OMP_NUM_THREADS=4 speed prepare-translator 140 translator --prepare --test-rows "$test_rows" &
  prepared="$prepared $!"
fi
if wants minilm && [ -n "${CLASSIFIER:-}" ]; then
  OMP_NUM_THREADS=4 speed prepare-minilm 140 classifier --prepare --classifier "$CLASSIFIER" \
    --clinc "$CLINC" &
  prepared="$prepared $!"
fi
if wants tests; then
  workers=""
  "$python" -c "import xdist" 2>/dev/null && workers="-n 4"
  # shellcheck disable=SC2086
  OMP_NUM_THREADS=2 stage tests 140 "$python" -m pytest -m gpu -p no:cacheprovider tests/gpu $workers &
  prepared="$prepared $!"
fi
for process in $prepared; do
  wait "$process"
done
wants tests &&
  grep -E '^[0-9]+ (passed|failed|skipped)|^FAILED|^SKIPPED' "$folder/tests.log" >&2

if wants encoder; then
  # shellcheck disable=SC2086
  speed encoder 110 bert-base-size --programs $encoder_programs --batches $batches \
    --lengths $lengths --seconds "$seconds"
fi
if wants translator; then
  # shellcheck disable=SC2086
  speed translator 70 translator --programs $rivals --batches $batches --seconds "$seconds" \
    --test-rows "$test_rows"
fi
if wants distillation; then
  # shellcheck disable=SC2086
  stage distillation 100 "$python" -m benchmarks.distill_rate --device "$device" --lines "$lines" \
    --rows $rows --steps "$steps" --output "$folder/distill-rate.json"
fi
if wants minilm && [ -n "${CLASSIFIER:-}" ]; then
  # shellcheck disable=SC2086
  speed minilm 60 classifier --classifier "$CLASSIFIER" --clinc "$CLINC" --programs eager --unsorted \
    --batches $batches --seconds "$seconds" --test-rows 1000
fi
if wants training && [ -n "${TEXT:-}" ]; then
  stage training 360 "$python" cli.py run -m compressor/example/tatoeba-en-de \
    --calibration compressor/example/calibration.tsv --test "${TEST:-compressor/example/test.tsv}" \
    --macs 0.4 --drop-layers decoder=2 --recover reconstruct+distill --distill-text "$TEXT" \
    --distill-epochs "$epochs" --device "$device" --precision fp32,fp16 --batch-size 1,64 \
    --bench-seconds 0.3 -v -o "$work/training"
  cp "$work/training/report.json" "$folder/training-report.json"
fi
"$python" -m benchmarks.gpu table "$folder"
