"""Decoders whose state stays on the device say what PyTorch says.

All but the capture is tested on the CPU: the graph's form, in float32 and float16, the buffers and
their sizes, and the search.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from compressor.errors import UsageError, VerificationError
from compressor.export.device_step import keep_state, write_helpers
from compressor.export.precisions import TOLERANCES, add_precision, write_precision
from compressor.export.verify import require_fed_back
from compressor.runtime import Translator
from compressor.runtime.device_decoder import LEAST_ROOM, DeviceDecoder
from compressor.runtime.session import choose_device
from tests.helpers import runtime_artifacts, toy
from tests.helpers.errors import raises
from tests.helpers.runtime_artifacts import Exported, export, vary, write_hashes
from tests.helpers.tiny import (
    empty_first_mask,
    nothing_left_mask,
    ragged_batch,
    tiny_model,
    uneven_mask,
    word_tokenizer,
)
from tests.runtime.test_translator import batch_of, generated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pieces() -> Exported:
    return runtime_artifacts.translator()


@pytest.fixture(scope="module")
def on_device(pieces: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_state(pieces.directory, tmp_path_factory.mktemp("device") / "out")


def with_state(source: Path, directory: Path) -> Path:
    """A copy of a float32 artifact with a decoder of the form that fp16 ones have for CUDA."""
    shutil.copytree(source, directory)
    path = directory / "onnx" / "decoder.onnx"
    model = keep_state(onnx.load(path))
    assert model is not None
    onnx.save(model, path)
    path.with_name("decoder.onnx_data").unlink(missing_ok=True)
    change(directory, precisions=write_helpers(path, ".onnx"))
    return directory


def change(directory: Path, precisions: Any = (), **generation: Any) -> None:
    """Change graphs.json: further float32 graphs by role, and settings of the search."""
    path = directory / "onnx" / "graphs.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["precisions"]["fp32"].update(precisions)
    data["generation"].update(generation)
    data["made_for"] = None  # the CPU computes float16 graphs, too, if slowly
    path.write_text(json.dumps(data), encoding="utf-8")
    write_hashes(directory)


def tiny(name: str, directory: Path, mask: Callable = uneven_mask) -> Exported:
    tiny_model(name).save_pretrained(directory / "dense")
    word_tokenizer().save_pretrained(directory / "dense")
    return export(directory / "dense", mask, directory / "out", vary)


def arrays_of(exported: Exported, rows: int = 5) -> dict[str, np.ndarray]:
    batch = ragged_batch(exported.model, rows)
    return {name: batch[name].numpy() for name in ("input_ids", "attention_mask")}


def wanted(exported: Exported, arrays: dict[str, np.ndarray], **options: Any) -> list[list[int]]:
    """Rows of transformers' `generate`, cut behind their end."""
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    rows = exported.model.generate(**inputs, do_sample=False, **options)[:, 1:].tolist()
    end = exported.model.generation_config.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


@pytest.mark.parametrize("rows", [1, 13])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"max_new_tokens": 5}], ids=str)
def test_generates_what_pytorch_generates(
    pieces: Exported, on_device: Path, options: dict, rows: int
) -> None:
    """Of rows that fill no class of sizes up, end at different steps, and move to fewer rows."""
    texts = toy.sentences(rows, seed=5)
    translator = Translator(on_device, threads=1)
    batch = batch_of(translator, texts)
    assert isinstance(translator.start(batch), DeviceDecoder)
    got = translator.generate(batch, **options)
    assert got == generated(pieces, texts, **options)
    assert rows == 1 or len({len(row) for row in got}) > 1
    assert got == translator.generate(batch, **options), "buffers are used a second time"


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("marian", empty_first_mask),
        ("m2m_100", uneven_mask),
    ],
)
def test_every_architecture_and_layers_without_units(
    name: str, mask: Callable, tmp_path: Path
) -> None:
    exported = tiny(name, tmp_path, mask)
    translator = Translator(with_state(exported.directory, tmp_path / "device"), threads=1)
    arrays = arrays_of(exported)
    for beams in (1, 3):
        got = translator.generate(arrays, num_beams=beams, max_new_tokens=9)
        assert got == wanted(exported, arrays, num_beams=beams, max_new_tokens=9)


def test_caches_are_made_longer(pieces: Exported, on_device: Path) -> None:
    ours, other = (Translator(path, threads=1) for path in (on_device, pieces.directory))
    batch = batch_of(ours, toy.sentences(5))
    length = LEAST_ROOM + 6
    assert ours.generate(batch, forced_length=length) == other.generate(batch, forced_length=length)
    tokens = np.random.default_rng(0).integers(3, 60, (5, length))
    found, expected = (model.teacher_forced(batch, tokens) for model in (ours, other))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


RULES = {
    "least length": {"min_length": 6, "suppress_tokens": [7, 59]},
    "forced": {"forced_bos_token_id": 9, "forced_eos_token_id": [12, 0], "max_new_tokens": 6},
    "forced and excluded": {"forced_bos_token_id": 9, "suppress_tokens": [9]},
    "no repetition": {"no_repeat_ngram_size": 2},
    "renormalized": {"renormalize_logits": True, "suppress_tokens": [7], "length_penalty": 0.4},
}


@pytest.mark.parametrize("name", RULES)
def test_rules_of_the_search_hold(
    pieces: Exported, on_device: Path, name: str, tmp_path: Path
) -> None:
    """As with the form of the decoder that shows every step's logits to the host."""
    directories = {"host": pieces.directory, "device": on_device}
    models = {}
    for form, directory in directories.items():
        shutil.copytree(directory, tmp_path / form)
        change(tmp_path / form, **RULES[name])
        models[form] = Translator(tmp_path / form, threads=1)
    batch = batch_of(models["host"], toy.sentences(7, seed=2))
    plain = Translator(pieces.directory, threads=1)
    for beams in (1, 3):
        expected = models["host"].generate(batch, num_beams=beams)
        assert models["device"].generate(batch, num_beams=beams) == expected
        assert expected != plain.generate(batch, num_beams=beams), "the test needs a difference"


def test_batches_at_a_time_do_not_share_buffers(on_device: Path) -> None:
    translator = Translator(on_device, threads=1)
    first, second = (batch_of(translator, toy.sentences(3, seed=seed)) for seed in (1, 2))
    tokens = np.array([59, 59, 59])
    alone = translator.start(first)
    expected = [alone.step(tokens).scores().copy() for _ in range(3)]
    one, two = translator.start(first), translator.start(second)
    for logits in expected:
        step = one.step(tokens)
        two.step(tokens)
        np.testing.assert_array_equal(step.scores(), logits)


def test_half_precision_for_cuda_answers_as_pytorch(pieces: Exported, tmp_path: Path) -> None:
    """The program's own check, on the CPU, which computes the same graphs."""
    directory = Path(shutil.copytree(pieces.directory, tmp_path / "out"))
    write_precision(directory, "fp16", (), device="cuda")
    change(directory)
    translator = Translator(directory, precision="fp16", threads=1)
    assert translator.feeds_back
    assert not translator.captured
    batch = batch_of(translator, toy.sentences(6, seed=3))
    single = Translator(pieces.directory, threads=1)
    tokens = np.random.default_rng(0).integers(3, 60, (6, 9))
    found, expected = (model.teacher_forced(batch, tokens) for model in (translator, single))
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    assert 0 < difference < TOLERANCES["fp16"]
    require_fed_back(translator, batch)


def test_a_decoder_that_feeds_back_other_tokens_is_refused(
    on_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(on_device, threads=1)
    batch = batch_of(translator, toy.sentences(2))
    require_fed_back(translator, batch)
    run = DeviceDecoder.run
    monkeypatch.setattr(DeviceDecoder, "run", lambda decoder, steps: run(decoder, steps) + 1)
    with raises(VerificationError, "fed-back-tokens-differ"):
        require_fed_back(translator, batch)


def test_a_decoder_without_heads_keeps_its_form(tmp_path: Path) -> None:
    exported = tiny("marian", tmp_path, nothing_left_mask)
    write_precision(exported.directory, "fp16", (), device="cuda")
    change(exported.directory)
    translator = Translator(exported.directory, precision="fp16", threads=1)
    assert not translator.feeds_back
    assert len(translator.generate(arrays_of(exported))) == 5


@pytest.mark.gpu
def test_captured_steps_on_a_gpu(pieces: Exported, tmp_path: Path) -> None:
    """The program's own check against PyTorch, and answers with and without CUDA graphs."""
    if choose_device("auto") != "cuda":
        pytest.skip("there is no CUDA device")
    directory = Path(shutil.copytree(pieces.directory, tmp_path / "out"))
    inputs = ragged_batch(pieces.model, 5)
    (check, *_) = add_precision(pieces.model, [inputs], directory, "fp16", "cuda")
    assert check.largest_difference <= check.tolerance
    write_hashes(directory)
    options = {"precision": "fp16", "device": "cuda"}
    captured = Translator(directory, **options)
    plain = Translator(directory, cuda_graphs=False, **options)
    for rows in (1, 5, 40):
        batch = batch_of(captured, toy.sentences(rows, seed=5))
        for beams in (1, 3):
            expected = plain.generate(batch, num_beams=beams)
            assert captured.generate(batch, num_beams=beams) == expected
    assert f"{len(captured.captured)} CUDA graphs" in captured.ran_by
    assert captured.captured
    assert not plain.captured


def test_padding_in_front_of_a_source_is_refused(on_device: Path) -> None:
    translator = Translator(on_device, threads=1)
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    with raises(UsageError, "padding-not-on-the-right"):
        translator.generate({"input_ids": np.full((2, 3), 9), "attention_mask": mask})
