"""Engines: OpenVINO answers as PyTorch, and what an engine cannot do is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compressor.commands import invoke
from compressor.errors import EnvironmentProblem, InputError, UsageError
from compressor.runtime import Classifier
from compressor.runtime.engines import engine_for
from compressor.runtime.engines.openvino import OpenVino
from tests.helpers import runtime_artifacts, toy
from tests.helpers.errors import raises
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


@pytest.fixture(scope="module")
def bert() -> Path:
    return runtime_artifacts.classifier("bert").directory


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
            wanted = exported.model(**{k: torch.from_numpy(v) for k, v in arrays.items()}).logits
        wanted = wanted.numpy()
        np.testing.assert_allclose(classifier.run(arrays), wanted, atol=1e-5 * largest(wanted))
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
    batches = [toy.sentences(12, seed) for seed in range(8)]
    wanted = [classifier.logits(texts) for texts in batches]
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.allclose(classifier.logits(batches[number]), wanted[number], atol=1e-6):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_bf16
@pytest.mark.slow
def test_compiled_models_are_kept_apart_by_precision_and_weights(tmp_path: Path) -> None:
    """OpenVINO takes a model that was kept in float32 for one in bfloat16."""
    texts, logits = toy.sentences(9), {}
    names = ("bert", "distilbert")
    for name in names:
        shutil.copytree(runtime_artifacts.classifier(name).directory, tmp_path / name)
    places = [(name, precision) for name in names for precision in ("fp32", "bf16")]
    for place in places:
        logits[place] = Classifier(
            tmp_path / place[0], threads=1, engine="openvino", precision=place[1]
        ).logits(texts)
    cache = tmp_path / "cache"
    for again in (False, True):
        for name, precision in places:
            classifier = Classifier(
                tmp_path / name, threads=1, engine="openvino", precision=precision, cache=cache
            )
            np.testing.assert_array_equal(classifier.logits(texts), logits[name, precision])
        kept = [path for path in cache.rglob("*") if path.is_file()]
        assert len(kept) == len(places), again
    assert not list((tmp_path / "bert").rglob("*.blob"))


def test_where_compiled_models_cannot_be_kept(bert: Path, tmp_path: Path) -> None:
    with raises(UsageError, "cache-in-artifact"):
        Classifier(bert, engine="openvino", cache=bert / "onnx" / "cache")
    with raises(UsageError, "option-without-use"):
        Classifier(bert, cache=tmp_path)
    (tmp_path / "file").touch()
    with raises(InputError, "cache-not-writable"):
        Classifier(bert, engine="openvino", cache=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "id"),
    [
        ({"engine": "openvnio"}, "engine-unknown"),
        ({"engine": "ctranslate2"}, "engine-not-for-task"),
        ({"engine": "openvino", "precision": "int8"}, "precision-not-of-engine"),
        ({"engine": "openvino", "device": "cuda"}, "device-not-of-engine"),
        ({"engine": "openvino", "device": "tpu"}, "device-unknown"),
        ({"engine": "openvino", "threads": 0}, "number-below-one"),
    ],
)
def test_what_an_engine_cannot_do_is_told(bert: Path, options: dict, id: str) -> None:
    with raises(UsageError, id):
        Classifier(bert, **options)


@pytest.mark.parametrize(
    ("name", "kind"), [("openvino", "encoder"), ("ctranslate2", "encoder-decoder")]
)
def test_a_package_that_is_missing_or_too_old_is_named(name, kind, monkeypatch, bert) -> None:
    engine = engine_for(name, kind)
    for old in ("2025.1.0-1234-releases", "4.7.9", "5.0.1", "2027.0.0"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__=old))
        with raises(EnvironmentProblem, "engine-version"):
            engine.library()
    monkeypatch.setitem(sys.modules, name, None)
    with raises(EnvironmentProblem, f"{name}-not-installed") as caught:
        engine.library()
    assert f"pip install '{name}>=" in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.slow
def test_commands_take_an_engine(bert: Path, tmp_path: Path, capsys) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(toy.sentences(9)), encoding="utf-8")
    classify = ["classify", str(bert), str(texts), "--threads", "1"]
    assert invoke(classify) == 0
    wanted = capsys.readouterr().out
    assert invoke([*classify, "--engine", "openvino", "--cache", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out == wanted
    assert list((tmp_path / "kept").rglob("*.blob"))
    assert invoke([*classify, "--engine", "openvino", "--precision", "int8"]) == 2
    assert invoke([*classify, "--engine", "ctranslate2"]) == 2
    assert invoke([*classify, "--engine", "openvino", "--device", "cuda"]) == 2


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
