"""Opens pruned checkpoints with transformers alone; run as a program by test_from_pretrained.py.

    python -I without_compress.py DIRECTORY RESULTS

DIRECTORY has a checkpoint for each of its folders, with `batch.pt`, the inputs. What the models
answer goes to RESULTS, one file for each: this process cannot import `compressor`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers


class _Absent:
    """Makes `compressor` a package that is not there."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "compressor":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def read(directory: Path, saved: Path) -> dict:
    """What a checkpoint answers when it is opened, and when it is trained, saved and opened."""
    batch = torch.load(directory / "batch.pt")
    config = transformers.AutoConfig.from_pretrained(directory)
    auto = getattr(transformers, next(iter(config.auto_map)))
    model = auto.from_pretrained(directory, trust_remote_code=True)
    results = {"class": type(model).__name__, "logits": _logits(model, batch)}
    if config.is_encoder_decoder:
        source = {key: batch[key] for key in ("input_ids", "attention_mask")}
        for beams in (1, 3):
            rows = model.generate(**source, max_new_tokens=7, num_beams=beams)
            results[f"{beams} beams"] = rows
    else:
        classify = transformers.pipeline(
            "text-classification", model=str(directory), trust_remote_code=True, top_k=None
        )
        (results["pipeline"],) = classify(["w9 w8 w7"])
        results["pipeline class"] = type(classify.model).__name__
    results["trained"] = _train(model, batch)
    model.save_pretrained(saved / "trained")
    trained = auto.from_pretrained(saved / "trained", trust_remote_code=True)
    results["trained again"] = _logits(trained, batch)
    return results


@torch.no_grad()
def _logits(model, batch):
    return model.eval()(**batch).logits


def _train(model, batch):
    """One step of AdamW; the logits after it."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(**batch).logits.logsumexp(-1).sum().backward()
    optimizer.step()
    return _logits(model, batch)


def main() -> None:
    sys.meta_path.insert(0, _Absent())
    try:
        import compressor  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit("compressor can be imported")
    source, results = map(Path, sys.argv[1:])
    for directory in sorted(source.iterdir()):
        saved = results / directory.name
        saved.mkdir(parents=True)
        torch.save(read(directory, saved), results / f"{directory.name}.pt")
    assert not any(name.partition(".")[0] == "compressor" for name in sys.modules)


if __name__ == "__main__":
    main()
