"""How encoders that are made for CUDA run: at fixed shapes, and without padding.

On a CPU the same graphs run in float32 in the same buffers, and nothing is captured.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from threading import get_ident
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from compressor.errors import EnvironmentProblem, UsageError
from compressor.export.for_cuda import pack
from compressor.export.fused import MASK, fuse
from compressor.export.precisions import write_precision
from compressor.pipeline.verification import verify_directory
from compressor.runtime import Classifier
from compressor.runtime import fused_encoder as module
from compressor.runtime.engines import Setup
from compressor.runtime.fused_encoder import FusedEncoder
from compressor.runtime.opening import read_artifact
from compressor.runtime.session import choose_device, open_session
from tests.helpers.errors import raises
from tests.helpers.packed_graphs import PackedSession, Uncapturable
from tests.helpers.runtime_artifacts import Exported, classifier, new_directory, write_hashes

pytestmark = pytest.mark.slow


@cache
def artifact() -> Exported:
    """A cut BERT for CUDA, and its fused graph in float32 beside it."""
    exported = classifier("bert")
    directory = new_directory() / "out"
    shutil.copytree(exported.directory, directory)
    write_precision(directory, "fp16", (), device="cuda")
    graph = fuse(onnx.load(directory / "onnx" / "model.onnx"))
    onnx.save(graph, directory.parent / "fused.onnx")
    write_hashes(directory)
    return replace(exported, directory=directory)


def setup(**more: Any) -> Setup:
    directory = artifact().directory
    return Setup(directory, read_artifact(directory), "fp16", **more)


def opened(role: str, captures: bool) -> Any:
    fused = artifact().directory.parent / "fused.onnx"
    assert not captures  # on a CPU
    return open_session(fused) if role == "model" else PackedSession(pack(onnx.load(fused)))


def arrays(rows: int, tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A ragged batch whose first row has all the tokens."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, tokens + 1, rows)
    lengths[0] = tokens
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    ids = generator.integers(6, 60, (rows, tokens)) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids % 2) * mask}


@torch.no_grad()
def expected(batch: dict[str, np.ndarray]) -> np.ndarray:
    inputs = {name: torch.from_numpy(value) for name, value in batch.items()}
    return artifact().model(**inputs).logits.numpy()


def test_answers_at_fixed_shapes_are_pytorchs():
    """Shapes come again with other contents, and answers stay what they were."""
    encoder = FusedEncoder(opened, setup())
    batches = [arrays(*shape, seed) for seed in (1, 2) for shape in ((3, 9), (1, 2), (5, 16))]
    answers = [encoder.run(batch) for batch in batches]
    for batch, logits in zip(batches, answers, strict=True):
        np.testing.assert_allclose(logits, expected(batch), atol=1e-5)
    assert [x.shape for x in encoder.captured] == [(4, 16), (1, 16), (8, 16)]
    none = {name: value[:0] for name, value in arrays(2, 4).items()}
    assert encoder.run(none).shape == (0, 5)
    turned = {name: value[:, ::-1] for name, value in arrays(3, 7).items()}
    with raises(UsageError, "padding-not-on-the-right"):
        encoder.run(turned)


@pytest.mark.parametrize("more", [{"workers": 3}, {"cuda_graphs": False}, {}], ids=str)
def test_threads_share_an_encoder(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """With captured shapes all run in the thread that captures: another cannot replay them."""
    monkeypatch.setattr(Setup, "captures", not more)
    encoder = FusedEncoder(lambda role, _: opened(role, False), setup(**more))
    run, threads = encoder._model.run_with_iobinding, []
    note = lambda *x: threads.append(get_ident()) or run(*x)  # noqa: E731
    monkeypatch.setattr(encoder._model, "run_with_iobinding", note)
    batches = [arrays(2, tokens, tokens) for tokens in range(3, 9)]
    with ThreadPoolExecutor(len(batches)) as pool:
        for batch, logits in zip(batches, pool.map(encoder.run, batches), strict=True):
            np.testing.assert_allclose(logits, expected(batch), atol=1e-5)
    assert [x.shape for x in encoder.captured] == ([] if more else [(2, 16)])
    assert (len(threads), len({*threads})) == ((0, 0) if more else (6, 1))


TURNS = """
import os, threading, time
from compressor.runtime.gpu_thread import in_turn
name = lambda: threading.current_thread().name
assert in_turn(in_turn, name) == "compress-captures"
if hasattr(os, "fork"):
    os.fork() or os._exit(in_turn(int))
    assert os.wait()[1] == 0
threading.Thread(target=lambda: time.sleep(0.2) or print(in_turn(name))).start()
"""


def test_batches_take_turns_in_a_child_and_after_the_main_thread_too():
    ran = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "compress-captures\n"), ran.stderr


def test_large_batches_with_padding_run_without_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LEAST_PADDING", 20)
    packed: list[PackedSession] = []

    def opens(role: str, captures: bool) -> Any:
        session = opened(role, captures)
        if role == "packed":
            packed.append(session)
        return session

    encoder = FusedEncoder(opens, setup())
    small, large = arrays(2, 3), arrays(9, 12)
    encoder.run(small)
    assert not packed  # its weights are not in memory before they are needed
    for _ in range(2):
        np.testing.assert_allclose(encoder.run(large), expected(large), atol=1e-5)
    assert [session.runs for session in packed] == [2]
    full = {name: np.ones_like(value) for name, value in large.items()}
    encoder.run(full)
    assert packed[0].runs == 2


def test_models_without_that_form_run_few_shapes(monkeypatch: pytest.MonkeyPatch):
    alone = replace(setup().artifact, precisions={"fp16": {"model": "model.fp16.onnx"}})
    encoder = FusedEncoder(opened, replace(setup(cuda_graphs=False), artifact=alone))
    run, seen = encoder._model.run, []
    monkeypatch.setattr(encoder._model, "run", lambda *x: seen.append(x[1]) or run(*x))
    for batch in (arrays(9, 17), arrays(12, 23)):
        np.testing.assert_allclose(encoder.run(batch), expected(batch), atol=1e-5)
    assert [inputs[MASK].shape for inputs in seen] == [(12, 24)] * 2


def test_a_shape_that_cannot_be_captured_runs_with_a_warning(monkeypatch):
    monkeypatch.setattr(Setup, "captures", True)
    batch = arrays(2, 4)
    encoder = FusedEncoder(lambda role, _: Uncapturable(opened(role, False)), setup())
    with pytest.warns(UserWarning, match="cannot capture the model graph"):
        logits = encoder.run(batch)
    np.testing.assert_allclose(logits, expected(batch), atol=1e-5)
    np.testing.assert_allclose(encoder.run(batch), logits)
    assert not encoder.captured


def test_on_a_cpu_they_are_refused_with_the_way_out():
    directory = artifact().directory
    with raises(EnvironmentProblem, "graphs-for-another-device") as caught:
        Classifier(directory, precision="fp16")
    assert "precision fp32" in str(caught.value)
    if choose_device("auto") != "cuda":
        assert verify_directory(directory).opened == [f"{directory} fp32"]
