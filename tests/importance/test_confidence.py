"""Confidence against the attention weights of NumPy models, one row at a time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from compressor.errors import InputError
from tests.helpers.errors import raises
from tests.helpers.numpy_transformer import NumpyTransformer, mask_arrays
from tests.helpers.stages import masks, rows_of, score, scoring
from tests.helpers.tiny import STRUCTURES


def tokenizer_with(boundaries: set[int]) -> SimpleNamespace:
    """A tokenizer that ends and begins texts with these tokens, up to four."""
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    return SimpleNamespace(**dict(zip(names, boundaries, strict=False)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_confidence_is_the_mean_largest_attention_weight(name: str):
    """softmax(q k^T / sqrt(d)) in NumPy; two tokens of the source, one of the target excluded."""
    setup = scoring(name, units="heads")
    ids = setup.batches[0]["input_ids"]
    special = {int(ids[0, 0]), int(ids[2, 4])}
    if "decoder_input_ids" in setup.batches[0]:
        special.add(int(setup.batches[0]["decoder_input_ids"][0, 2]))
    for mask in masks(setup):
        options = {"tokenizer": tokenizer_with(special), "mask": mask, "units": "heads"}
        found = score("confidence", scoring(name, **options), normalize="none")
        expected = {layer.name: [] for layer in setup.layers}
        for row in rows_of(setup):
            model = NumpyTransformer(setup.model, row)
            model.logits(mask_arrays(mask))
            words = {
                part: ~np.isin(row[part][0].numpy(), list(special))
                for part in ("input_ids", "decoder_input_ids")
                if part in row
            }
            for layer in setup.layers:
                queries = "input_ids" if layer.kind == "encoder_self" else "decoder_input_ids"
                keys = "decoder_input_ids" if layer.kind == "decoder_self" else "input_ids"
                for query in np.flatnonzero(words[queries]):
                    weights = model.probabilities[layer.name][:, query, words[keys]]
                    if weights.shape[1]:
                        expected[layer.name].append(weights.max(-1))
        for layer in setup.layers:
            kept = np.array(mask.keep[layer.name])
            np.testing.assert_allclose(
                found.values[layer.name], np.mean(expected[layer.name], 0) * kept, rtol=1e-4
            )


def test_confidence_of_rows_without_words_is_refused():
    setup = scoring("bert")
    setup.batches[0]["input_ids"][:] = 3
    with raises(InputError, "calibration-without-words"):
        score("confidence", scoring("bert", setup.batches, "heads", tokenizer=tokenizer_with({3})))
