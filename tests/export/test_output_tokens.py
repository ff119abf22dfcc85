"""A decoder scores the tokens a target text can have, and answers as PyTorch does among these."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from compressor.errors import InputError
from compressor.export import export_model
from compressor.export.graphs import BATCH, export_graph
from compressor.export.precisions import add_precision, require_within
from compressor.export.task_graphs import Network
from compressor.export.vocabulary import best_tokens, output_tokens
from compressor.model.checkpoint import open_checkpoint
from compressor.model.surgery import prune
from compressor.pipeline.inputs import make_probe
from compressor.runtime.generation import Generation
from compressor.runtime.vocabulary import OutputTokens, count_output_tokens
from compressor.tasks import TASKS
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.tiny import uneven_mask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A translator between two languages, pruned unevenly and exported in float32 and int8."""
    root = tmp_path_factory.mktemp("two")
    checkpoint = open_checkpoint(str(toy.marian_with_pieces(root / "dense", own_target=True)))
    mask = uneven_mask(checkpoint.layers)
    model = prune(checkpoint.model, checkpoint.layers, mask)
    task = TASKS["translation"]
    rows = TASKS["translation"].read_rows(toy.pairs_file(root / "rows.tsv"), minimum=1)
    examples = task.encode(rows, checkpoint.tokenizer, 32)
    probe = make_probe(rows, examples, model, task)
    network = Network(checkpoint, model, mask, output_tokens(checkpoint))
    checks = export_model(network, probe.batches, probe.texts, root / "out")
    inputs = [batch.inputs() for batch in probe.batches]
    require_within(add_precision(model, inputs, root / "out", "int8"), "int8")
    return checkpoint, model, root / "out", checks


def target_texts(count: int) -> list[str]:
    """Also with characters that neither language has, and with some only the source has."""
    rng = random.Random(1)
    letters = "v0123456789 .undwäß漢🙂\u00a0"
    return ["".join(rng.choices(letters, k=rng.randrange(1, 30))) for _ in range(count)]


def test_whatever_a_target_text_is_cut_into_can_be_said(made):
    checkpoint, _, out, checks = made
    kept = set(output_tokens(checkpoint))
    seen = set()
    for text in target_texts(800):
        seen |= set(checkpoint.tokenizer(text_target=text)["input_ids"])
    assert seen <= kept
    vocabulary = checkpoint.tokenizer.get_vocab()
    gone = {piece for piece, number in vocabulary.items() if number not in kept}
    assert len(gone) >= 20
    assert len(kept) % 16 == 0
    assert all("w" in piece and len(piece) > 1 for piece in gone)  # "w" itself is unknown there
    assert count_output_tokens(out) == len(kept) == len(vocabulary) - len(gone)
    assert f"scores {len(kept)} of {len(vocabulary)} tokens" in checks[1].detail


def test_one_vocabulary_for_both_languages_stays_whole(tmp_path):
    checkpoint = open_checkpoint(str(toy.marian_with_pieces(tmp_path / "one")))
    assert output_tokens(checkpoint) is None
    words = open_checkpoint(str(toy.translator(tmp_path / "bart", "bart")))
    assert output_tokens(words) is None


def test_the_graph_holds_no_rows_of_other_tokens(made):
    checkpoint, model, out, _ = made
    kept = output_tokens(checkpoint)
    graph = onnx.load(out / "onnx" / "decoder.onnx").graph
    tables = [i for i in graph.initializer if len(i.dims) == 2 and i.dims[0] >= len(kept)]
    assert [list(table.dims) for table in tables] == [[len(kept), model.config.d_model]]  # tied
    found = onnx.numpy_helper.to_array(tables[0])
    np.testing.assert_array_equal(found, model.lm_head.weight.detach().numpy()[kept])


def test_settings_with_ids_become_settings_with_indices(made):
    tokens = OutputTokens([0, 3, 4, 9])
    settings = Generation(
        decoder_start_token_id=9, eos_token_id=[0, 4], max_length=5, forced_bos_token_id=3,
        forced_eos_token_id=[0], suppress_tokens=[9, 5],
    )  # fmt: skip
    found = tokens.settings(settings)
    assert (found.decoder_start_token_id, found.forced_bos_token_id) == (3, 1)
    assert (found.eos_token_id, found.forced_eos_token_id) == ([0, 2], [0])
    assert found.suppress_tokens == [3]  # token 5 is never said anyway
    assert tokens.rows([[1, 2], []]) == [[3, 4], []]
    with raises(InputError, "token-not-in-output"):
        tokens.indices(np.array([[3, 5]]))
    with raises(InputError, "token-not-in-output"):
        tokens.settings(replace(settings, forced_bos_token_id=7))


class Best(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return best_tokens(logits)


@pytest.mark.parametrize("tokens", [6000, 97])
def test_the_largest_logit_is_the_first_of_equals(tokens, tmp_path):
    """In PyTorch, and in a graph where blocks are long enough to save anything."""
    rng = np.random.default_rng(tokens)
    logits = rng.integers(-5, 5, (40, tokens)).astype(np.float32)  # many are equal
    logits[0] = -np.inf
    logits[1] = -3e38
    expected = logits.argmax(axis=1)
    np.testing.assert_array_equal(best_tokens(torch.from_numpy(logits)).numpy(), expected)
    path = tmp_path / "best.onnx"
    example = (torch.zeros(2, tokens),)
    export_graph(Best(), example, ["logits"], ["best"], {"logits": {0: BATCH}}, path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert ("ReduceMax" in kinds) == (tokens == 6000)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"logits": logits})
    np.testing.assert_array_equal(found, expected)
