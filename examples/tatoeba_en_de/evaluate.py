"""BLEU of a translation checkpoint on a test file, by greedy search through the exported graphs."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from compressor.options.requests import EvaluateRequest, ExportRequest, make_request
from compressor.pipeline.compare_artifacts import evaluate_artifacts
from compressor.pipeline.single import export_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--test", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        export_checkpoint(make_request(ExportRequest, model=args.model), Path(directory))
        request = make_request(EvaluateRequest, test=args.test, num_beams=1)
        (found,) = evaluate_artifacts([Path(directory)], request)
    for metric, value in found.quality.metrics.items():
        print(f"{metric} {value:.2f}  {found.quality.signatures[metric]}")


if __name__ == "__main__":
    main()
