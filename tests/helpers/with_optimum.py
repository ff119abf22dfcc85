"""Opens exports with optimum-onnx; run as a program by test_real_optimum.py.

    python -I with_optimum.py DIRECTORY RESULTS

Each folder of DIRECTORY has an export, and `batch.npz` with the inputs. What the models answer goes
to RESULTS, one file for each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer


def main() -> None:
    source, results = map(Path, sys.argv[1:])
    for directory in sorted(source.iterdir()):
        batch = {name: torch.from_numpy(x) for name, x in np.load(directory / "batch.npz").items()}
        tokens = AutoTokenizer.from_pretrained(directory)("w3 w9 w40")["input_ids"]
        logits = ORTModelForSequenceClassification.from_pretrained(directory)(**batch).logits
        np.savez(results / f"{directory.name}.npz", tokens=tokens, logits=logits.numpy())


if __name__ == "__main__":
    main()
