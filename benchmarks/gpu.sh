#!/usr/bin/env bash
# All measurements that want a GPU, sized for ten minutes; tables go to
# benchmarks/results/*-cuda.md. From a checkout with the package installed:
#
#     benchmarks/gpu.sh [WORK_DIRECTORY]
#
# PYTHON names the interpreter (default: .venv/bin/python, else python3). DEVICE=cpu tries the script
# out on a machine without a GPU; its numbers then go to the CPU's tables.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-gpu-work}
device=${DEVICE:-cuda}
batches=${BATCHES:-1 4 16 64 256}
lengths=${LENGTHS:-32 128 512}
seconds=${SECONDS_EACH:-0.5}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3

if [ "$device" = cuda ]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
"$python" -m compressor doctor || [ "$device" = cpu ]
# Ends here, with the reason, where nothing could be measured.
"$python" -c "from compressor.runtime.session import try_device; try_device('$device')"

# BERT-base size, dense against half of the heads and neurons, at every batch and length.
# shellcheck disable=SC2086
"$python" -m benchmarks.speed bert-base-size --work "$work" --device "$device" \
  --programs eager --batches $batches --lengths $lengths --seconds "$seconds"
# Both translators; the trained one with its BLEU.
# shellcheck disable=SC2086
"$python" -m benchmarks.speed translator opus-size --work "$work" --device "$device" \
  --programs eager --batches $batches --seconds "$seconds"
"$python" -m benchmarks.scale --work "$work/scale" --device "$device" --seconds "$seconds"
# What onnxruntime's optimizations gain, each left out in turn; the tables name the links.
for name in translator bert-base-size; do
  ln -sfn "$name/out" "$work/$name-pruned"
done
"$python" -m benchmarks.optimizers "$work/translator-pruned" "$work/bert-base-size-pruned" \
  --device "$device"
