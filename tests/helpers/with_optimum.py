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
from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTModelForSequenceClassification
from transformers import AutoTokenizer


def answers(directory: Path) -> dict[str, np.ndarray]:
    """Tokens of a translator, logits of a classifier."""
    batch = {name: torch.from_numpy(x) for name, x in np.load(directory / "batch.npz").items()}
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = {"tokens": np.array(tokenizer("w3 w9 w40")["input_ids"])}
    if (directory / "model.onnx").exists():
        model = ORTModelForSequenceClassification.from_pretrained(directory)
        return found | {"logits": model(**batch).logits.numpy()}
    model = ORTModelForSeq2SeqLM.from_pretrained(directory, use_io_binding=False)
    for beams in (1, 4):
        rows = model.generate(**batch, num_beams=beams, do_sample=False, max_new_tokens=12)
        found[f"beams {beams}"] = rows.numpy()
    return found


def main() -> None:
    source, results = map(Path, sys.argv[1:])
    for directory in sorted(source.iterdir()):
        np.savez(results / f"{directory.name}.npz", **answers(directory))


if __name__ == "__main__":
    main()
