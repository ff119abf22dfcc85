"""Decoders that write their caches in place generate what PyTorch does, and what others do."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from compressor.export.shared_caches import share_caches
from compressor.runtime import Translator
from compressor.runtime.decoder import FIRST_LENGTH, CachedDecoder, InPlaceDecoder
from tests.helpers import runtime_artifacts, toy
from tests.helpers.runtime_artifacts import Exported, write_hashes
from tests.runtime.test_translator import batch_of, generated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pieces() -> Exported:
    return runtime_artifacts.translator()


@pytest.fixture(scope="module")
def in_place(pieces: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float32 artifact, with a decoder that int8 ones have: no rounding hides a difference."""
    directory = tmp_path_factory.mktemp("in-place") / "out"
    shutil.copytree(pieces.directory, directory)
    path = directory / "onnx" / "decoder.onnx"
    model = onnx.load(path)
    share_caches(model)
    assert sum(node.op_type == "GroupQueryAttention" for node in model.graph.node) > 0
    onnx.save(model, path)
    path.with_name("decoder.onnx_data").unlink(missing_ok=True)
    write_hashes(directory)
    return directory


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"max_new_tokens": 4}], ids=str)
def test_generates_what_pytorch_generates(pieces: Exported, in_place: Path, options: dict) -> None:
    """Of rows that end at different steps, and so leave the batch."""
    texts = toy.sentences(13, seed=5)
    translator = Translator(in_place, threads=1)
    batch = batch_of(translator, texts)
    assert isinstance(translator.start(batch), InPlaceDecoder)
    got = translator.generate(batch, **options)
    assert got == generated(pieces, texts, **options)
    assert len({len(row) for row in got}) > 1, "the test needs outputs of several lengths"


def test_caches_grow_beyond_their_first_length(pieces: Exported, in_place: Path) -> None:
    ours, other = (Translator(path, threads=1) for path in (in_place, pieces.directory))
    batch = batch_of(ours, toy.sentences(5))
    assert isinstance(other.start(batch), CachedDecoder)
    length = FIRST_LENGTH + 6
    forced = ours.generate(batch, forced_length=length)
    assert [len(row) for row in forced] == [length] * 5
    assert forced == other.generate(batch, forced_length=length)


def test_two_batches_at_a_time_do_not_share_caches(in_place: Path) -> None:
    translator = Translator(in_place, threads=1)
    first, second = (batch_of(translator, toy.sentences(3, seed=seed)) for seed in (1, 2))
    tokens = np.array([59, 59, 59])
    alone = translator.start(first)
    expected = [alone.step(tokens).scores().copy() for _ in range(3)]
    one, two = translator.start(first), translator.start(second)
    for logits in expected:
        step = one.step(tokens)
        two.step(tokens)
        np.testing.assert_array_equal(step.scores(), logits)
