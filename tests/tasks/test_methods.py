"""Every task's batches and loss are ones that methods can score units by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compressor.errors import UsageError
from compressor.importance import METHODS, ScoringJob, score_units
from compressor.importance.depth import layers_to_drop
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.tasks import TASKS
from tests.helpers.errors import raises
from tests.helpers.heads import (
    TAGS,
    questions,
    save_reader,
    save_scorer,
    save_tagger,
    write_queries,
    write_questions,
    write_tagged,
)
from tests.helpers.sentence_encoders import save_encoder, write_texts

CHECKPOINTS: dict[str, Any] = {
    "embedding": lambda root: (save_encoder(root / "m"), write_texts(root / "a.txt", 12)),
    "reranking": lambda root: (save_scorer(root / "m", 1), write_queries(root / "a.tsv", 4)),
    "token-classification": lambda root: (
        save_tagger(root / "m"), write_tagged(root / "a.conll", 6)),
    "question-answering": lambda root: (
        save_reader(root / "m"), write_questions(root / "a.json", questions(4, 0, 0.2))),
}  # fmt: skip


@pytest.fixture(scope="module", params=CHECKPOINTS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ScoringJob:
    root: Path = tmp_path_factory.mktemp("methods")
    task = TASKS[request.param]
    directory, data = CHECKPOINTS[task.name](root)
    opened = open_checkpoint(str(directory), task=task.name)
    rows = task.read_rows(data, labels=TAGS if "token" in task.name else None)
    examples = task.encode(rows, opened.tokenizer, opened.max_source_tokens)
    batches, heads = task.batches(examples, opened.model, batch_size=8), opened.attention
    return ScoringJob(opened.model, heads, Mask.full(heads), batches, task, opened.tokenizer)


@pytest.mark.parametrize("name", ["second-order", "ablation", "relevance", "confidence"])
def test_methods_score_heads(name: str, job: ScoringJob) -> None:
    if not job.task.has_answers and name in ("ablation", "relevance"):
        with raises(UsageError, "method-for-other-tasks"):
            METHODS[name]().check_task(job.task)
        return
    scores = score_units(METHODS[name](), job)
    assert {layer: len(values) for layer, values in scores.values.items()} == {
        x.name: x.units for x in job.layers
    }
    assert any(value for values in scores.values.values() for value in values)
    if not job.task.one_example_per_row:
        with raises(UsageError, "method-for-other-tasks"):
            METHODS["ablation"](ablate="metric").check_task(job.task)


def test_the_layer_that_goes_first_changes_answers_little(job: ScoringJob) -> None:
    """The divergence is finite: padding has no part in it."""
    found = layers_to_drop(job.model, job.layers, job.batches, job.task, {"encoder": 1})
    ((name, divergence),) = found.items()
    assert name in {x.layer for x in job.layers}
    assert 0 < divergence < 10
