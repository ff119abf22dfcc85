#!/bin/sh
# Compress a model in several processes on this machine; the options are those of `compress run`.
#
#     pip install '.[distributed]'    # in a checkout of the repository
#     PROCESSES=4 examples/distributed/run.sh -m Helsinki-NLP/opus-mt-en-de \
#         --calibration pairs.tsv --test test.tsv --macs 0.6 -o out
#
# On GPUs: as many processes as there are. On processors: at most one for each core, each with its
# share of the cores' threads.
set -eu
: "${PROCESSES:=2}"
: "${OMP_NUM_THREADS:=$(($(getconf _NPROCESSORS_ONLN) / PROCESSES))}"
if [ "$OMP_NUM_THREADS" -lt 1 ]; then OMP_NUM_THREADS=1; fi
export OMP_NUM_THREADS
exec torchrun --standalone --nproc-per-node "$PROCESSES" -m compressor run "$@"
