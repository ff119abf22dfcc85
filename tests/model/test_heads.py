"""An encoder architecture serves several classes of transformers, which differ by their heads.

test_surgery.py cuts their models.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.pipeline.inputs import load
from compressor.request.sections import ModelSection
from tests.helpers.errors import raises
from tests.helpers.heads import HEADS, save_head, tiny_head
from tests.helpers.tiny import ragged_batch, tiny_model, word_tokenizer


def without_class(directory: Path) -> Path:
    """The checkpoint, whose configuration no longer says which class it is of."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["architectures"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return directory


def test_the_task_says_what_the_configuration_does_not(tmp_path):
    model = without_class(save_head(tmp_path / "m", "bert", "token-classification"))
    for task in HEADS:
        other = without_class(save_head(tmp_path / task, "electra", task))
        assert open_checkpoint(str(other), task=task).task == task
    with raises(InputError, "weights-do-not-fit") as caught:  # taken for a classifier of texts
        open_checkpoint(str(model))
    assert "--task" in str(caught.value)
    reader = save_head(tmp_path / "reader", "distilbert", "question-answering")
    for task in ("classification", "translation"):
        with raises(UsageError, "task-of-another-model") as caught:
            load(ModelSection(path=str(reader), task=task))
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
    assert torch.equal(opened.model(**batch).logits, model(**batch).logits)
