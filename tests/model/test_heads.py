"""An encoder architecture serves several classes of transformers, which differ by their heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint, save_checkpoint
from compressor.model.surgery import prune, verify_surgery
from compressor.pipeline.inputs import load
from compressor.request.sections import ModelSection
from tests.helpers.errors import raises
from tests.helpers.heads import ENCODERS, HEADS, save_head, tiny_head
from tests.helpers.tiny import facts, ragged_batch, tiny_model, uneven_mask, word_tokenizer


@torch.no_grad()
def outputs(model: Any, batch: Any) -> list[torch.Tensor]:
    found = model(**batch)
    names = ("start_logits", "end_logits") if "start_logits" in found else ("logits",)
    return [found[name] for name in names]


def without_class(directory: Path) -> Path:
    """The checkpoint, whose configuration no longer says which class it is of."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["architectures"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return directory


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("name", ENCODERS)
def test_other_heads_are_opened_cut_saved_and_opened_again(name: str, task: str, tmp_path):
    opened = open_checkpoint(str(save_head(tmp_path / "dense", name, task)))
    library = getattr(transformers, HEADS[task])
    original = library.from_pretrained(tmp_path / "dense").eval()
    batch = ragged_batch(original)
    assert all(map(torch.equal, outputs(opened.model, batch), outputs(original, batch)))
    mask = uneven_mask(opened.layers)
    smaller = prune(opened.model, opened.layers, mask)
    verify_surgery(opened.model, smaller, opened.layers, mask, [batch])
    save_checkpoint(opened, smaller, facts(opened.layers, mask), tmp_path / "out")
    reloaded, wanted = open_checkpoint(str(tmp_path / "out")), outputs(smaller, batch)
    alone = library.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert (opened.task, reloaded.task) == (task, task)
    assert type(alone).__name__ == f"Pruned{type(original).__name__}"
    assert all(map(torch.equal, outputs(reloaded.model, batch), wanted))
    assert all(map(torch.equal, outputs(alone, batch), wanted))


def test_the_task_says_what_the_configuration_does_not(tmp_path):
    model = without_class(save_head(tmp_path / "m", "bert", "token-classification"))
    for task in HEADS:
        other = without_class(save_head(tmp_path / task, "electra", task))
        assert open_checkpoint(str(other), task=task).task == task
    with raises(InputError, "weights-do-not-fit") as caught:  # taken for a classifier of texts
        open_checkpoint(str(model))
    assert "--task" in str(caught.value)


@pytest.mark.parametrize("task", ["classification", "embedding", "translation"])
def test_a_task_for_another_head_is_refused(task: str, tmp_path):
    model = save_head(tmp_path / "m", "distilbert", "question-answering")
    with raises(UsageError, "task-of-another-model") as caught:
        load(ModelSection(path=str(model), task=task))
    assert "a question-answering model" in str(caught.value)


def test_the_pooler_of_pretraining_is_left_out(tmp_path):
    """Taggers on the hub have it, although their class has none."""
    model, pretrained = tiny_head("bert", "token-classification"), tiny_model("bert")
    state = model.state_dict()
    state |= {name: x for name, x in pretrained.state_dict().items() if ".pooler." in name}
    model.save_pretrained(tmp_path, state_dict=state)
    word_tokenizer().save_pretrained(tmp_path)
    opened = open_checkpoint(str(tmp_path))
    batch = ragged_batch(model)
    assert torch.equal(*outputs(opened.model, batch), *outputs(model, batch))
