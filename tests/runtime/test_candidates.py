"""Searches that score candidates alone, against `generate` of transformers with all others masked.

The table is random, since what is in it does not matter to a search.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.errors import InputError
from compressor.runtime import Translator
from compressor.runtime.batching import collate
from compressor.runtime.candidates import FREQUENT_ROWS, candidates
from tests.helpers import toy
from tests.helpers.candidates import random_table, with_table
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported, export, new_directory, vary
from tests.helpers.tiny import uneven_mask

TOKENS, K = 1200, 6
TEXTS = ["w3 w4 w5 w6", "w7", "w8 w9 w3 w10 w11 w12 w13", "w14 w15", "w3 w3 w3"]


@cache
def artifact() -> Exported:
    """A translator of words."""
    directory = new_directory()
    dense = toy.many_words(directory / "dense", size=TOKENS)
    made = export(dense, uneven_mask, directory / "out", lambda model: vary(model, 3))
    return with_table(made, random_table(TOKENS, K))


def encoded(runtime: Translator, texts: list[str]) -> dict[str, np.ndarray]:
    return collate(runtime.encode(texts), runtime.artifact.pad_token_id, runtime.artifact.inputs)


def by_transformers(made: Exported, batch: dict, tokens: np.ndarray, **options) -> list[list[int]]:
    """What `generate` finds where the logits of all other tokens are minus infinity."""
    layer = made.model.get_output_embeddings()
    others = torch.ones(layer.out_features, dtype=torch.bool)
    others[tokens] = False
    hook = layer.register_forward_hook(lambda *x: x[2].masked_fill(others, -torch.inf))
    inputs = {name: torch.tensor(x) for name, x in batch.items()}
    found = made.model.generate(**inputs, do_sample=False, **options)
    hook.remove()
    end = made.model.generation_config.eos_token_id
    rows = [row[1:] for row in found.tolist()]
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rows", [1, 5])
def test_answers_are_those_of_transformers_with_all_other_tokens_masked(rows, beams):
    made = artifact()
    runtime = Translator(made.directory)
    for start in range(0, len(TEXTS), rows):
        batch = encoded(runtime, TEXTS[start : start + rows])
        tokens = runtime.candidates(batch)
        assert 64 <= len(tokens) <= TOKENS / 4
        found = runtime.generate(batch, num_beams=beams, max_new_tokens=14)
        wanted = by_transformers(made, batch, tokens, num_beams=beams, max_new_tokens=14)
        assert found == wanted
        assert {token for row in found for token in row} <= {*tokens.tolist()}
    whole = Translator(made.directory, candidates=False)
    assert whole.translate(TEXTS) != runtime.translate(TEXTS)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_logits_of_candidates_are_those_of_all_tokens(precision):
    made = artifact()
    runtime, whole = (
        Translator(made.directory, precision=precision, candidates=x) for x in (True, False)
    )
    batch = encoded(runtime, TEXTS)
    tokens = runtime.candidates(batch)
    start = np.full((len(TEXTS), 1), made.model.generation_config.decoder_start_token_id)
    forced = np.concatenate([start, np.arange(30, 30 + 4 * len(TEXTS)).reshape(-1, 4)], axis=1)
    wanted = whole.teacher_forced(batch, forced)
    exact = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(runtime.teacher_forced(batch, forced), wanted, **exact)
    found = runtime.teacher_forced(batch, forced, candidates=True)
    np.testing.assert_allclose(found[..., tokens], wanted[..., tokens], **exact)
    others = np.setdiff1d(np.arange(TOKENS), tokens)
    assert np.isneginf(found[..., others]).all()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_with_many_candidates_all_tokens_are_scored(tmp_path, precision):
    """As without candidates: a quarter of the tokens are candidates of every batch."""
    directory = tmp_path / "out"
    dense = toy.many_words(tmp_path / "dense", size=400)
    made = export(dense, uneven_mask, directory, lambda model: vary(model, 3))
    table = random_table(400, 30)
    with_table(made, table)
    runtime, whole = (
        Translator(directory, precision=precision, candidates=x) for x in (True, False)
    )
    assert runtime.candidates(encoded(runtime, TEXTS)) is None
    assert runtime.translate(TEXTS, num_beams=2) == whole.translate(TEXTS, num_beams=2)
    assert runtime.translate(TEXTS) == whole.translate(TEXTS)


def test_candidates_are_those_of_the_table():
    """By a set for each batch; filled up with the lowest tokens that are none."""
    table = random_table(TOKENS, K)
    for sources in ([3], [5, 6, 7, 5], list(range(20))):
        always = [1199, 2]
        wanted = {*always, *table[-FREQUENT_ROWS:].ravel().tolist()}
        wanted |= {token for source in sources for token in table[source].tolist()}
        free = (token for token in range(TOKENS) if token not in wanted)
        filled = sorted(wanted | {next(free) for _ in range(-len(wanted) % 64)})
        found = candidates(table, np.array(sources), always, TOKENS)
        assert found.tolist() == filled
    assert candidates(table, np.arange(60), (), TOKENS) is None


def test_rules_and_rows_that_leave(tmp_path):
    """Tokens that settings name are candidates; banned ones and repeated n-grams are left out."""
    directory = tmp_path / "out"
    dense = toy.many_words(tmp_path / "dense", size=TOKENS)

    def change(model) -> None:
        vary(model, 2)
        settings = model.generation_config
        settings.forced_bos_token_id, settings.forced_eos_token_id = 1111, 1112
        settings.no_repeat_ngram_size, settings.min_length = 2, 4
        settings.bad_words_ids = [[2]]

    made = with_table(export(dense, uneven_mask, directory, change), random_table(TOKENS, K))
    for precision in ("fp32", "int8"):
        runtime = Translator(directory, precision=precision)
        batch = encoded(runtime, TEXTS)
        tokens = runtime.candidates(batch)
        assert {0, 1111, 1112} <= {*tokens.tolist()}
        for beams in (1, 2):
            found = runtime.generate(batch, num_beams=beams, max_new_tokens=9)
            assert {row[0] for row in found} == {1111}
            if precision == "fp32":
                options = {"num_beams": beams, "max_new_tokens": 9}
                assert found == by_transformers(made, batch, tokens, **options)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY\x01\x00", None, np.zeros((3, 2), np.int32), np.zeros(9, np.int32),
                np.full((99, 2), TOKENS, np.int32), np.zeros((99, 2)), np.array([[{}]])]
)  # fmt: skip
def test_damaged_tables_are_refused(tmp_path, content):
    made = artifact()
    directory = Path(shutil.copytree(made.directory, tmp_path / "out"))
    path = directory / "onnx/candidates.npy"
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with raises(InputError, "artifact-invalid"):
        Translator(directory, verify=False)
    with pytest.raises(InputError):
        Translator(directory)


def test_weights_are_stored_once():
    """The graphs of candidates read them from the decoder's file."""
    graphs = artifact().directory / "onnx"
    assert not [*graphs.glob("*candidate*_data")]
    for suffix in (".onnx", ".int8.onnx"):
        weights = (graphs / f"decoder{suffix}_data").stat().st_size
        own = (graphs / f"gather_candidates{suffix}").stat().st_size
        assert weights > 20 * own
