"""OpenVINO answers as PyTorch."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from compressor.commands import invoke
from compressor.runtime import Classifier
from compressor.runtime.engines.openvino import OpenVino
from tests.helpers import runtime_artifacts, toy
from tests.helpers.runtime_artifacts import Exported, balance, export, largest
from tests.helpers.tiny import nothing_left_mask
from tests.runtime.test_translator import batch_of

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


@pytest.mark.slow
def test_openvino_gives_pytorchs_logits(exported: Exported) -> None:
    classifier = Classifier(exported.directory, threads=1, engine="openvino")
    for rows, seed in ((1, 0), (5, 1), (3, 2), (12, 3), (5, 4)):
        arrays = batch_of(classifier, toy.sentences(rows, seed))
        with torch.no_grad():
            logits = exported.model(**{k: torch.from_numpy(v) for k, v in arrays.items()}).logits
        expected = logits.numpy()
        np.testing.assert_allclose(classifier.run(arrays), expected, atol=1e-5 * largest(expected))
    assert (classifier.engine, classifier.precision) == ("openvino", "fp32")
    assert classifier.provider == "OpenVINO CPU"


@needs_bf16
@pytest.mark.slow
def test_bf16_is_computed_only_where_it_is_asked_for(exported: Exported) -> None:
    """Rounding to 8 bits shows in every logit."""
    plain, rounded = (
        Classifier(exported.directory, threads=1, engine="openvino", precision=precision)
        for precision in (None, "bf16")
    )
    arrays = batch_of(plain, toy.sentences(8, 5))
    difference = largest(plain.run(arrays) - rounded.run(arrays)) / largest(plain.run(arrays))
    assert 1e-4 < difference < 0.1
    assert rounded.precision == "bf16"


@needs_bf16
@pytest.mark.slow
def test_compiled_models_are_kept_apart_by_precision_and_weights(tmp_path: Path) -> None:
    """OpenVINO takes a model that was kept in float32 for one in bfloat16."""
    texts, cache = toy.sentences(9), tmp_path / "cache"
    builds = list(product(("bert", "distilbert"), ("fp32", "bf16")))

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
def test_the_command_takes_an_engine(bert: Path, tmp_path: Path, capsys) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(toy.sentences(9)), encoding="utf-8")
    classify = ["classify", str(bert), str(texts), "--threads", "1"]
    assert invoke(classify) == 0
    expected = capsys.readouterr().out
    assert invoke([*classify, "--engine", "openvino", "--cache", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out == expected
    assert list((tmp_path / "kept").rglob("*.blob"))
    assert invoke([*classify, "--cache", str(tmp_path / "kept")]) == 2
    assert invoke([*classify, "--engine", "openvino", "--cache", str(bert / "kept")]) == 2


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
