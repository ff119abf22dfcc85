"""One run for each task but the two that have files of their own: data, options, and what follows.

A model has one layer, whose graphs are exported the fastest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.helpers import toy
from tests.helpers.command_line import invoke
from tests.helpers.heads import questions as squad
from tests.helpers.heads import (
    save_reader,
    save_scorer,
    save_tagger,
    write_queries,
    write_questions,
    write_scores,
    write_tagged,
)
from tests.helpers.sentence_encoders import save_encoder, write_pairs, write_texts

BOTH = ("--precision", "fp32,int8")
DISTILLED = ("--recover", "reconstruct+distill", "--distill-epochs", "1")
TIMED = ("-b", "8", "--bench-seconds", "0.05")


@dataclass(frozen=True)
class TaskRun:
    """A run of a task."""

    task: str
    fill: Callable[[Path], object]  # writes `model` and the data into a directory
    calibration: str  # name of a file, as the next
    test: str
    options: tuple[str, ...]  # more words of the command; `@NAME` is a file in the directory
    drop: str  # metric whose rule the gate is told, and which every evaluation has
    classes: tuple[str, str]  # of the runtime and of transformers, as the model card names them

    def make(self, folder: Path) -> None:
        """Write the data and run the command."""
        self.fill(folder)
        words = [
            word.replace("@", f"{folder}/") if word[0] == "@" else word for word in self.options
        ]
        command = [
            "run", "-m", folder / "model", "--calibration", folder / self.calibration,
            "--test", folder / self.test, "-o", folder / "out", "--resamples", "100",
            "--device", "cpu", "--max-metric-drop", f"{self.drop}=1000", *words,
        ]  # fmt: skip
        with mock.patch("sys.argv", ["compress", *map(str, command)]):  # which the report shows
            invoke(*command)


def embedding(folder: Path) -> None:
    save_encoder(folder / "model", "bert", "mean", dense=True, layers=1)
    write_texts(folder / "texts.txt", 40)
    write_pairs(folder / "pairs.tsv", 30)
    write_queries(folder / "queries.tsv", 8)


def token_classification(folder: Path) -> None:
    save_tagger(folder / "model", num_hidden_layers=1)
    write_tagged(folder / "rows.conll", 40)
    write_tagged(folder / "test.conll", 30, seed=1)
    write_texts(folder / "texts.txt", 40)


def question_answering(folder: Path) -> None:
    save_reader(folder / "model", num_hidden_layers=1)
    write_questions(folder / "rows.json", squad(40))
    write_questions(folder / "test.json", squad(30, seed=1, impossible=0.3))


def summarization(folder: Path) -> None:
    """A BART with generation settings as checkpoints for summaries have."""
    dense = toy.first_layers(toy.checkpoint(folder / "whole", "bart"), folder / "model")
    path = dense / "generation_config.json"
    settings = {
        "num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "min_length": 5,
        "max_length": 12, "early_stopping": True, "forced_bos_token_id": 7,
    }  # fmt: skip
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | settings), "utf-8")
    for seed, name in enumerate(("rows", "test")):
        toy.pairs_file(folder / f"{name}.tsv", rows=16, seed=seed)


def scorer(folder: Path, outputs: int) -> None:
    toy.first_layers(save_scorer(folder / "whole", outputs), folder / "model")


def regression(folder: Path) -> None:
    scorer(folder, 1)
    write_scores(folder / "rows.tsv", 40)
    write_scores(folder / "test.tsv", 30, seed=1)
    (folder / "texts.txt").write_text("w3 w4\tw5\n" * 8, encoding="utf-8")


def reranking(folder: Path) -> None:
    scorer(folder, 2)
    write_queries(folder / "rows.tsv", 12)
    write_queries(folder / "test.tsv", 24, seed=1)


RUNS = {
    "embedding": TaskRun(
        "embedding", embedding, "texts.txt", "pairs.tsv",
        ("--macs", "0.5", *BOTH, *DISTILLED, *TIMED, "--distill-text", "@texts.txt",
         "--engines", "onnxruntime,openvino"),
        "spearman", ("Embedder", "AutoModel"),
    ),
    "token-classification": TaskRun(
        "token-classification", token_classification, "rows.conll", "test.conll",
        ("--macs", "0.5", *BOTH, *DISTILLED, "--no-bench", "--distill-text", "@texts.txt"),
        "entity_f1", ("TokenClassifier", "AutoModelForTokenClassification"),
    ),
    "question-answering": TaskRun(
        "question-answering", question_answering, "rows.json", "test.json",
        ("--macs", "0.5", *BOTH, *DISTILLED, "--no-bench"),
        "exact_match", ("QuestionAnswerer", "AutoModelForQuestionAnswering"),
    ),
    "summarization": TaskRun(
        "summarization", summarization, "rows.tsv", "test.tsv",
        ("--macs", "0.7", "--task", "summarization", *TIMED, "--recover", "reconstruct"),
        "rouge2", ("Generator", "AutoModelForSeq2SeqLM"),
    ),
    "regression": TaskRun(
        "regression", regression, "rows.tsv", "test.tsv",
        ("--macs", "0.6", *BOTH, *DISTILLED, "--no-bench", "--distill-text", "@texts.txt"),
        "pearson", ("Regressor", "AutoModelForSequenceClassification"),
    ),
    "reranking": TaskRun(  # searched on half of the queries
        "reranking", reranking, "rows.tsv", "test.tsv",
        ("--max-drop", "1000", "--drop-proof", "measured", "--task", "reranking", "--no-bench",
         "--recover", "none"),
        "ndcg@10", ("Reranker", "AutoModelForSequenceClassification"),
    ),
}  # fmt: skip
