"""OpenVINO answers as PyTorch."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.commands import invoke
from compressor.runtime import Classifier
from compressor.runtime.engines.openvino import OpenVino
from tests.helpers import runtime_artifacts, toy
from tests.helpers.runtime_artifacts import Exported, balance, export, largest
from tests.helpers.tiny import nothing_left_mask, ragged_batch

# By the engine's own import, which reports nothing to a web service.
CAN_BF16 = "BF16" in OpenVino.library().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
needs_bf16 = pytest.mark.skipif(not CAN_BF16, reason="no bfloat16 on this processor")


@pytest.fixture(scope="module", params=["bert", "distilbert", "nothing left"])
def exported(request: pytest.FixtureRequest, tmp_path_factory) -> Exported:
    """Uneven sublayers, some of them empty; and no units at all."""
    if request.param != "nothing left":
        return runtime_artifacts.classifier(request.param)
    directory = tmp_path_factory.mktemp("empty")
    return export(
        toy.classifier(directory / "dense"), nothing_left_mask, directory / "out", balance
    )


def arrays_of(exported: Exported, rows: int, seed: int) -> dict[str, np.ndarray]:
    batch = {n: x.numpy() for n, x in ragged_batch(exported.model, rows, seed).items()}
    names = Classifier(exported.directory, threads=1).artifact.inputs
    return {name: batch.get(name, np.zeros_like(batch["input_ids"])) for name in names}


@pytest.mark.slow
def test_openvino_gives_pytorchs_logits(exported: Exported) -> None:
    classifier = Classifier(exported.directory, threads=1, engine="openvino")
    for rows, seed in ((1, 0), (5, 1), (3, 2), (12, 3), (5, 4)):
        arrays = arrays_of(exported, rows, seed)
        with torch.no_grad():
            logits = exported.model(**{k: torch.from_numpy(v) for k, v in arrays.items()}).logits
        expected = logits.numpy()
        np.testing.assert_allclose(classifier.run(arrays), expected, atol=1e-5 * largest(expected))
    texts = [*toy.sentences(20), "", "  "]
    other = Classifier(exported.directory, threads=1)
    assert classifier.classify(texts) == other.classify(texts)
    assert list(classifier.classify_stream(texts)) == list(other.classify_stream(texts))
    assert (classifier.engine, classifier.precision) == ("openvino", "fp32")
    assert (other.engine, classifier.provider) == ("onnxruntime", "OpenVINO CPU")


@needs_bf16
@pytest.mark.slow
def test_bf16_is_computed_only_where_it_is_asked_for(exported: Exported) -> None:
    """Rounding to 8 bits shows in every logit."""
    plain, rounded = (
        Classifier(exported.directory, threads=1, engine="openvino", precision=precision)
        for precision in (None, "bf16")
    )
    arrays = arrays_of(exported, 8, 5)
    difference = largest(plain.run(arrays) - rounded.run(arrays)) / largest(plain.run(arrays))
    assert 1e-4 < difference < 0.1
    assert rounded.precision == "bf16"


@pytest.mark.slow
def test_threads_share_a_classifier(bert: Path) -> None:
    classifier = Classifier(bert, threads=1, engine="openvino")
    batches = [toy.sentences(12, seed) for seed in range(8)] * 20
    expected = [classifier.logits(texts) for texts in batches[:8]] * 20
    with ThreadPoolExecutor(8) as pool:
        for logits, alone in zip(pool.map(classifier.logits, batches), expected, strict=True):
            np.testing.assert_allclose(logits, alone, atol=1e-6)


@needs_bf16
@pytest.mark.slow
def test_compiled_models_are_kept_apart_by_precision_and_weights(tmp_path: Path) -> None:
    """OpenVINO takes a model that was kept in float32 for one in bfloat16."""
    texts, cache = toy.sentences(9), tmp_path / "cache"
    builds = [
        (name, precision) for name in ("bert", "distilbert") for precision in ("fp32", "bf16")
    ]

    def logits(name: str, precision: str, **options) -> np.ndarray:
        directory = runtime_artifacts.classifier(name).directory
        options |= {"threads": 1, "engine": "openvino", "precision": precision}
        return Classifier(directory, **options).logits(texts)

    expected = {build: logits(*build) for build in builds}
    for _ in range(2):
        for build in builds:
            np.testing.assert_array_equal(logits(*build, cache=cache), expected[build])
        assert len([path for path in cache.rglob("*") if path.is_file()]) == len(builds)


@pytest.mark.slow
def test_the_command_takes_an_engine_and_workers(bert: Path, tmp_path: Path, capsys) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(toy.sentences(9)), encoding="utf-8")
    classify = ["classify", str(bert), str(texts), "--threads", "1"]
    assert invoke(classify) == 0
    expected = capsys.readouterr().out
    assert invoke([*classify, "--engine", "openvino", "--cache", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out == expected
    assert invoke([*classify, "--workers", "2"]) == 0
    assert capsys.readouterr().out == expected
    assert list((tmp_path / "kept").rglob("*.blob"))
    assert invoke([*classify, "--engine", "openvino", "--precision", "int8"]) == 2


def test_ctrl_c_is_heard_after_openvino_models_are_gone(bert: Path) -> None:
    """In a process of its own: where it is not, the process crashes."""
    program = f"""
import signal
from compressor.runtime import Classifier
first, second = (Classifier({str(bert)!r}, engine="openvino") for _ in range(2))
assert first.classify(["w3"]) == second.classify(["w3"])
del first
del second
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
