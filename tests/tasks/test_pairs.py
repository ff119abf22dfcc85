"""Pairs whose token types a checkpoint does not know, and single texts, which it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from tokenizers import processors

from compressor.commands import invoke
from compressor.errors import InputError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask
from compressor.runtime import Classifier
from compressor.tasks import require_task
from tests.helpers import tiny
from tests.helpers.errors import raises
from tests.helpers.files import write
from tests.helpers.runtime_artifacts import export

ID = "token-type-unknown"
ROWS = "text\tother\tlabel\n" + "".join(f"w5 w{i}\tw{i} w6 w7\t{i % 2}\n" for i in range(6, 16))
_ONE_LAYER = tiny._ENCODER | {"num_hidden_layers": 1}
SIZES: dict[str, dict[str, Any]] = {
    "Bert": _ONE_LAYER, "Electra": _ONE_LAYER | {"embedding_size": 24}, "Roberta": _ONE_LAYER,
    "DistilBert": tiny._DISTILBERT | {"n_layers": 1},
}  # fmt: skip


def save(directory: Path, name: str, head: str, given: bool = True, **sizes: Any) -> Path:
    """A model whose tokenizer gives the second text of a pair type 1.

    Args:
        given: whether transformers hands types to the model.
    """
    torch.manual_seed(0)
    config = getattr(t, f"{name}Config")(**SIZES[name] | sizes)
    getattr(t, f"{name}For{head}")(config).save_pretrained(directory)
    tokenizer = tiny.word_tokenizer(given)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", "$A </s> $B:1 </s>:1", [("</s>", 2)]
    )
    tokenizer.save_pretrained(directory)
    return directory


@torch.no_grad()
def by_transformers(directory: Path, *texts: str) -> np.ndarray:
    inputs = t.AutoTokenizer.from_pretrained(directory)(*texts, return_tensors="pt")
    model = t.AutoModelForSequenceClassification.from_pretrained(directory)
    return model(**inputs).logits[0].numpy()


@pytest.mark.parametrize("name", ["Bert", "Electra", "Roberta"])
def test_pairs_are_refused_with_both_values(name: str, tmp_path, capsys):
    model = save(tmp_path / "m", name, "SequenceClassification", type_vocab_size=1)
    with pytest.raises(IndexError):
        by_transformers(model, "w5", "w6")
    rows = write(tmp_path / "rows.tsv", ROWS)
    for words in (["score", "--prune", "heads"], ["export"]):
        columns = ["--calibration", rows, "--text-pair-column", "other", "-q"]
        assert (
            invoke([*words, "-m", str(model), "-o", str(tmp_path / "o"), *map(str, columns)]) == 4
        )
        message = capsys.readouterr().err
        assert "the token type 1" in message
        assert "type_vocab_size 1" in message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Bert", "Roberta"])
def test_an_artifact_reads_single_texts_and_refuses_pairs(name: str, tmp_path):
    model = save(tmp_path / "m", name, "SequenceClassification", type_vocab_size=1)
    made = export(model, Mask.full, tmp_path / "out")
    classifier = Classifier(made.directory)
    found = classifier.logits(["w5 w6 w7"])[0]
    np.testing.assert_allclose(found, by_transformers(model, "w5 w6 w7"), atol=1e-5)
    with raises(InputError, ID) as caught:
        classifier.classify(["w5"], ["w6"])
    assert "the token type 1, and the model has 1 " in str(caught.value)
    with raises(InputError, ID):
        list(classifier.classify_stream([("w5", "w6")]))
    with raises(InputError, ID):
        classifier.encode(["w5"], ["w6"])  # as what is timed is


@pytest.mark.parametrize(
    ("head", "task", "labels"),
    [("QuestionAnswering", None, 2), ("SequenceClassification", "reranking", 1)],
)
def test_models_that_read_pairs_alone_are_refused_when_they_are_opened(
    head: str, task: str | None, labels: int, tmp_path
):
    model = save(tmp_path, "Bert", head, type_vocab_size=1, num_labels=labels)
    opened = open_checkpoint(str(model), task=task)
    with raises(InputError, ID):
        require_task(opened)


def test_types_that_the_model_has_and_its_graphs_do_not_read_are_refused(tmp_path):
    """RoBERTa with two types: transformers reads the second, and the answer depends on it."""
    model = save(tmp_path, "Roberta", "SequenceClassification", type_vocab_size=2)
    plain = save(tmp_path / "o", "Roberta", "SequenceClassification", False, type_vocab_size=2)
    assert np.abs(by_transformers(model, "w5", "w6") - by_transformers(plain, "w5", "w6")).max() > 0
    with raises(InputError, ID) as caught:
        open_checkpoint(str(model)).require_pairs()
    assert "type_vocab_size 2, of which" in str(caught.value)
    open_checkpoint(str(plain)).require_pairs()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given", "sizes"),
    [
        ("Bert", True, {}),
        ("Bert", False, {"type_vocab_size": 1}),  # types that the model is not handed
        ("DistilBert", True, {}),  # which leaves them out
    ],
)
def test_other_pairs_are_read_as_by_transformers(name: str, given: bool, sizes, tmp_path):
    model = save(tmp_path / "m", name, "SequenceClassification", given, **sizes)
    open_checkpoint(str(model)).require_pairs()
    made = export(model, Mask.full, tmp_path / "out")
    found = Classifier(made.directory).logits(["w5 w8"], ["w6 w7 w9"])[0]
    np.testing.assert_allclose(found, by_transformers(model, "w5 w8", "w6 w7 w9"), atol=1e-5)
