"""What a PyTorch model answers to a batch, against transformers called directly."""

from __future__ import annotations

import pytest

from compressor.errors import UsageError
from compressor.tasks import TASKS
from tests.helpers.batches import labelled_batch, one_row
from tests.helpers.tiny import (
    BUILDERS,
    TRANSLATORS,
    tiny_model,
    word_tokenizer,
)

translation, classification = TASKS["translation"], TASKS["classification"]


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [None, 3])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_those_of_generate(name: str, num_beams: int | None):
    """Row by row without padding."""
    model, tokenizer = tiny_model(name), word_tokenizer()
    model.generation_config.num_beams = 2  # a width of its own changes nothing
    model.generation_config.max_length = 12
    batch = labelled_batch(model, rows=5)
    found = translation.predict(model, batch, tokenizer, num_beams)
    expected = [
        tokenizer.decode(
            model.generate(
                one_row(batch, row)["input_ids"], num_beams=num_beams or 1, do_sample=False
            )[0],
            skip_special_tokens=True,
        )
        for row in range(5)
    ]
    assert found == expected
    assert len(set(found)) > 1
    assert all("</s>" not in text and "<pad>" not in text for text in found)


@pytest.mark.parametrize("name", [n for n in BUILDERS if n not in TRANSLATORS])
def test_labels_are_those_of_the_largest_logits(name: str):
    model = tiny_model(name)
    model.config.id2label = {i: f"class {i}" for i in range(5)}
    batch = labelled_batch(model, rows=5)
    found = classification.predict(model, batch, None)
    expected = []
    for row in range(5):
        inputs = {n: v for n, v in one_row(batch, row).items() if n != "labels"}
        expected.append(f"class {int(model(**inputs).logits.detach().numpy().argmax())}")
    assert found == expected
    with pytest.raises(UsageError, match="--num-beams 4 makes no sense"):
        classification.predict(model, batch, None, 4)
