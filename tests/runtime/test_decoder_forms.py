"""Decoders that write caches in place, or keep their state on the device, say what PyTorch says.

Both forms run here in float32 on the CPU, so that no rounding hides a difference; all but the
capture of CUDA graphs is tested so.
"""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import torch

from compressor.errors import InputError, VerificationError
from compressor.export.device_step import keep_state, share_caches, write_helpers
from compressor.export.precisions import (
    TOLERANCES,
    compare_precision,
    expect_answers,
    write_precision,
)
from compressor.export.verify import require_fed_back
from compressor.runtime import Translator, device_search
from compressor.runtime.decoder import CachedDecoder, InPlaceDecoder
from compressor.runtime.device_decoder import LEAST_ROOM, DeviceDecoder
from compressor.runtime.engines import Setup
from compressor.runtime.engines.onnxruntime import OnnxRuntime
from compressor.runtime.step_memory import FIRST_LENGTH
from compressor.storage.input_files import read_json
from tests.export.test_for_cuda import ON_GPU
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.packed_graphs import Uncapturable
from tests.helpers.runtime_artifacts import Exported, export, vary, write_hashes
from tests.helpers.tiny import empty_first_mask
from tests.runtime.test_translator import batch_of, change, generated, with_settings

pytestmark = pytest.mark.slow


class Form(NamedTuple):
    directory: Path
    decoder: type


def in_place(model: onnx.ModelProto) -> onnx.ModelProto:
    """The form that int8 decoders have."""
    share_caches(model)
    assert sum(node.op_type == "GroupQueryAttention" for node in model.graph.node) > 0
    return model


def on_device(model: onnx.ModelProto) -> onnx.ModelProto:
    """The form that float16 decoders for CUDA have."""
    rewritten = keep_state(model)
    assert rewritten is not None
    more = {"GroupQueryAttention", "ScatterElements", "ArgMax"}
    assert {node.op_type for node in rewritten.graph.node} <= ON_GPU | more
    return rewritten


def with_form(source: Path, directory: Path, rewrite: Callable) -> Path:
    """A copy of a float32 artifact with a decoder of another form."""
    shutil.copytree(source, directory)
    path = directory / "onnx" / "decoder.onnx"
    onnx.save(rewrite(onnx.load(path)), path)
    path.with_name("decoder.onnx_data").unlink(missing_ok=True)
    change(directory, write_helpers(path, ".onnx") if rewrite is on_device else ())
    return directory


@pytest.fixture(scope="module")
def device(pieces: Exported, tmp_path_factory) -> Path:
    return with_form(pieces.directory, tmp_path_factory.mktemp("device") / "out", on_device)


@pytest.fixture(scope="module", params=["in place", "on device"])
def form(request: pytest.FixtureRequest, pieces: Exported, device: Path, tmp_path_factory) -> Form:
    if request.param == "on device":
        return Form(device, DeviceDecoder)
    directory = with_form(pieces.directory, tmp_path_factory.mktemp("place") / "out", in_place)
    return Form(directory, InPlaceDecoder)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"max_new_tokens": 5}], ids=str)
def test_generates_what_pytorch_generates(
    pieces: Exported, form: Form, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that fill no class of sizes up, end at different steps, and leave the batch."""
    monkeypatch.setattr(device_search, "MANY_ROWS", 1)
    translator = Translator(form.directory, threads=1)
    for rows in (1, 13):
        texts = toy.sentences(rows, seed=5)
        batch = batch_of(translator, texts)
        assert isinstance(translator.start(batch), form.decoder)
        got = translator.generate(batch, **options)
        assert got == generated(pieces, texts, **options)
        assert got == translator.generate(batch, **options), "buffers are used a second time"
    assert len({len(row) for row in got}) > 1


@pytest.mark.parametrize("rewrite", [None, in_place], ids=["caches from every step", "in place"])
def test_a_graph_selects_the_best_tokens(
    pieces: Exported, rewrite: Callable | None, tmp_path: Path
) -> None:
    """Artifacts of older versions have none, and the search finds the same by itself."""
    now = pieces.directory
    if rewrite is not None:
        now = with_form(pieces.directory, tmp_path / "now", rewrite)
    older = shutil.copytree(now, tmp_path / "older")
    path = older / "onnx" / "graphs.json"
    data = read_json(path)
    del data["precisions"]["fp32"]["rank"]
    path.write_text(json.dumps(data), encoding="utf-8")
    write_hashes(older)
    texts = toy.sentences(9, seed=6)
    translator, other = (Translator(directory, threads=1) for directory in (now, older))
    batch = batch_of(translator, texts)
    decoder = translator.start(batch)
    decoder.step(np.full(9, 3))
    values, tokens = torch.tensor(decoder.scores()).log_softmax(-1).topk(5)
    top = decoder.top(5)
    assert top is not None
    np.testing.assert_allclose(top[0], values, rtol=1e-5, atol=1e-5)
    assert top[1].tolist() == tokens.tolist()
    assert other.start(batch).top(5) is None
    answers = translator.generate(batch, num_beams=4)
    assert answers == other.generate(batch, num_beams=4) == generated(pieces, texts, num_beams=4)


def test_caches_are_made_longer(pieces: Exported, form: Form) -> None:
    ours, other = (Translator(path, threads=1) for path in (form.directory, pieces.directory))
    batch = batch_of(ours, toy.sentences(5))
    assert isinstance(other.start(batch), CachedDecoder)
    length = max(LEAST_ROOM, FIRST_LENGTH) + 6
    forced = ours.generate(batch, forced_length=length)
    assert [len(row) for row in forced] == [length] * 5
    assert forced == other.generate(batch, forced_length=length)
    tokens = np.random.default_rng(0).integers(3, 60, (5, length))
    logits, expected = (model.teacher_forced(batch, tokens) for model in (ours, other))
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


def test_buffers_are_taken_over_from_a_longer_batch(pieces: Exported, device: Path) -> None:
    """Whose rows got there when the caches had been made longer."""
    translator = Translator(device, threads=1)
    whole = batch_of(translator, toy.sentences(4, seed=5))
    decoder = translator.start(whole)
    decoder.feed(np.zeros(4, np.int64))
    decoder.run(LEAST_ROOM + 2)
    decoder.keep(np.arange(2))
    decoder.run(1)
    del decoder
    batch = {name: rows[:2] for name, rows in whole.items()}
    assert translator.generate(batch) == Translator(pieces.directory).generate(batch)


def test_decoders_that_live_at_once_have_buffers_of_their_own(pieces: Exported, form: Form) -> None:
    """Those of a decoder that has ended go to another one with as many rows."""
    translator, other = (Translator(path, threads=1) for path in (form.directory, pieces.directory))
    batches = [batch_of(translator, toy.sentences(4, seed=i)) for i in range(3)]
    steps = max(LEAST_ROOM, FIRST_LENGTH) + 2
    tokens = np.random.default_rng(0).integers(3, 60, (3, 4, steps))
    expected = [other.teacher_forced(*given) for given in zip(batches, tokens, strict=True)]
    for _ in range(2):  # the second time with buffers that have been used
        decoders = [translator.start(batch) for batch in batches]
        for step in range(steps):  # in turns
            for decoder, fed, logits in zip(decoders, tokens, expected, strict=True):
                decoder.step(fed[:, step])
                most = 1e-5 * np.abs(logits).max()
                np.testing.assert_allclose(decoder.scores(), logits[:, step], atol=most)
        for decoder in decoders:
            decoder.keep(np.arange(3))
        del decoders, decoder


def test_memory_is_taken_over_without_what_belonged_to_the_batch(
    pieces: Exported, tmp_path: Path
) -> None:
    directory = with_form(pieces.directory, tmp_path / "place", in_place)
    translator = Translator(directory, threads=1)
    batch, other = (batch_of(translator, toy.sentences(rows)) for rows in (4, 3))
    masks = [weakref.ref(batch[name]) for name in batch]
    kept = translator.start(batch)._memory
    del batch
    gc.collect()
    assert all(mask() is None for mask in masks)
    again = translator.start(batch_of(translator, toy.sentences(4, seed=7)))
    assert again._memory is kept
    assert translator.start(batch_of(translator, toy.sentences(4)))._memory is not kept
    del again
    translator.start(other)  # of another number of rows, so what was kept is let go
    assert translator.start(batch_of(translator, toy.sentences(4)))._memory is not kept


def test_what_cannot_be_captured_runs_with_a_warning(
    pieces: Exported, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Setup, "captures", True)
    other, translator = Translator(pieces.directory), Translator(device)
    assert other._graph.captures == []  # of a form whose caches move
    batch, graph = batch_of(translator, toy.sentences(5)), translator._graph
    expected = other.generate(batch, num_beams=2)
    assert translator.generate(batch, num_beams=2) == expected
    shapes = [graph.shape for graph in translator.captured]
    assert shapes == [(8, 16, 32), (8, 16), (16, 16, 32), (16, 16, 32), (8, 16, 32)]
    graph._free.clear()
    graph.captured.clear()
    graph.captures = [Uncapturable(session) for session in graph.captures]
    graph.encoder, graph.session = graph.captures
    with pytest.warns(UserWarning, match="cannot capture the decoder graph"):
        assert translator.generate(batch, num_beams=2) == expected
    assert not translator.captured
    with raises(InputError, "artifact-invalid"):  # bound buffers raise another error than others
        other.generate({**batch, "input_ids": batch["input_ids"] + 1000})


def test_several_workers_answer_as_one(form: Form) -> None:
    texts = [*toy.sentences(40, seed=3), "", *toy.sentences(9, seed=4)]
    one, several = (Translator(form.directory, workers=count) for count in (1, 3))
    options = {"num_beams": 3, "batch_size": 4}
    assert several.translate(texts, **options) == one.translate(texts, **options)


def test_layers_without_units_and_other_names_of_the_library(tmp_path: Path) -> None:
    """The first sublayers of an M2M100 have no units."""
    whole = toy.checkpoint(tmp_path / "whole", "m2m_100")
    dense = toy.first_layers(whole, tmp_path / "dense", 2)
    exported = export(dense, empty_first_mask, tmp_path / "out", vary)
    directory = with_form(exported.directory, tmp_path / "device", on_device)
    translator = Translator(directory, threads=1)
    texts = toy.sentences(5)
    for beams in (1, 3):
        options = {"num_beams": beams, "max_new_tokens": 9}
        expected = generated(exported, texts, **options)
        assert translator.generate(batch_of(translator, texts), **options) == expected


RULES = {
    "least length": {"min_length": 6, "suppress_tokens": [7, 59]},
    "forced": {"forced_bos_token_id": 9, "forced_eos_token_id": [12, 0], "max_new_tokens": 6},
    "forced, though banned": {
        "bad_words_ids": [[9], [12]], "forced_bos_token_id": 9, "forced_eos_token_id": 12,
        "max_new_tokens": 6,
    },
    "forced and excluded": {"forced_bos_token_id": 9, "suppress_tokens": [9]},
    "no repetition": {"no_repeat_ngram_size": 2},
    "renormalized": {"renormalize_logits": True, "suppress_tokens": [7], "length_penalty": 0.4},
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules_of_the_search_hold(
    pieces: Exported, device: Path, name: str, tmp_path: Path
) -> None:
    """As with the form of the decoder that shows every step's logits to the host."""
    models = {}
    for kind, directory in {"host": pieces.directory, "device": device}.items():
        changed = with_settings(directory, tmp_path / kind, **RULES[name])
        models[kind] = Translator(changed, threads=1)
    batch = batch_of(models["host"], toy.sentences(7, seed=2))
    plain = Translator(pieces.directory, threads=1)
    for beams in (1,) if models["host"].artifact.generation.ends_tie else (1, 3):
        expected = models["host"].generate(batch, num_beams=beams)
        assert models["device"].generate(batch, num_beams=beams) == expected
        assert expected != plain.generate(batch, num_beams=beams), "the test needs a difference"


def for_cuda(exported: Exported, directory: Path) -> Translator:
    """Half-precision graphs for CUDA, on the CPU, which computes them, too."""
    shutil.copytree(exported.directory, directory)
    write_precision(directory, "fp16", (), device="cuda")
    change(directory)
    return Translator(directory, precision="fp16", threads=1)


def test_half_precision_for_cuda_answers_as_pytorch(
    pieces: Exported, hollow: Exported, tmp_path: Path
) -> None:
    """By the program's own check; a decoder without heads keeps its form."""
    translator, single = for_cuda(pieces, tmp_path / "a"), Translator(pieces.directory, threads=1)
    assert translator.feeds_back
    assert not translator.captured
    batch = batch_of(translator, toy.sentences(6, seed=3))
    tokens = np.random.default_rng(0).integers(3, 60, (6, 9))
    logits, expected = (model.teacher_forced(batch, tokens) for model in (translator, single))
    difference = np.abs(logits - expected).max() / np.abs(expected).max()
    assert 0 < difference < TOLERANCES["fp16"]
    require_fed_back(translator, batch)
    other = for_cuda(hollow, tmp_path / "b")
    assert not other.feeds_back
    assert len(other.generate(batch_of(other, toy.sentences(5)))) == 5


def test_graphs_for_cuda_that_differ_are_not_delivered(
    pieces: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other precisions are only reported: they are the same graphs, rounded."""
    directory = shutil.copytree(pieces.directory, tmp_path / "out")
    write_precision(directory, "fp16", (), device="cuda")
    write_hashes(directory)
    monkeypatch.setattr(OnnxRuntime, "precision", lambda *given: given[2])  # on a CPU, too
    inputs = pieces.tokenizer(toy.sentences(6, seed=3), return_tensors="pt", padding=True)
    expected = expect_answers(pieces.model, [inputs], directory, "fp16")
    compared = partial(compare_precision, expected, directory, "fp16", "cpu", real=True)
    assert all(check.is_met for check in compared())
    monkeypatch.setitem(TOLERANCES, "fp16", 1e-9)
    with raises(VerificationError, "precision-differs"):
        compared()


def test_a_decoder_that_feeds_back_other_tokens_fails_its_check(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = Translator(device, threads=1)
    batch = batch_of(translator, toy.sentences(2))
    run = DeviceDecoder.run
    monkeypatch.setattr(DeviceDecoder, "run", lambda decoder, steps: run(decoder, steps) + 1)
    with raises(VerificationError, "fed-back-tokens-differ"):
        require_fed_back(translator, batch)
