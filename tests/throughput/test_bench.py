"""The whole measurement on artifacts small enough to be written by hand; no time is looked at."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from compressor.errors import EnvironmentProblem, UsageError
from compressor.tasks import TASKS
from compressor.tasks.rows import Rows
from compressor.throughput import Subject, benchmark, measure_memory
from tests.helpers.errors import raises

pytestmark = pytest.mark.slow

CLASSIFIER = TASKS["classification"].runtime
VOCABULARY = 8
EMBEDDING = 64
PAD, START, END = 0, 1, 7
WORDS = [f"w{number}" for number in range(VOCABULARY)]
SENTENCES = ["w2 w3 w4", "w5", "w2 w2 w6 w3 w5", "w4 w4"]  # 3, 1, 5 and 2 tokens

BERT = {
    "model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16,
}  # fmt: skip
MARIAN = {
    "model_type": "marian", "d_model": 8, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 8,
}  # fmt: skip


def write_graph(path: Path, nodes, inputs, outputs, constants: dict[str, np.ndarray]) -> None:
    graph = helper.make_graph(
        nodes, "made by hand", inputs, outputs,
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


def integers(name: str, *shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def floats(name: str, *shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def write_artifact(directory: Path, task: str, more: dict, precision: str = "fp32") -> Path:
    """`graphs.json` and `tokenizer.json`, a word per token; returns the folder for the graphs."""
    folder = directory / "onnx"
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = ("model",) if task == "classification" else ("encoder", "decoder")
    data = {
        "schema": 1, "task": task, "default_precision": precision,
        "precisions": {precision: {role: f"{role}.onnx" for role in roles}},
        "tokenizer": "tokenizer.json", "max_source_tokens": 1_000_000, "pad_token_id": PAD,
        "inputs": ["input_ids", "attention_mask"], **more,
    }  # fmt: skip
    (folder / "graphs.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


def classifier(directory: Path, precision: str = "fp32") -> Path:
    """Two logits from the mean embedding of a row, padding included."""
    folder = write_artifact(directory, "classification", {"labels": ["no", "yes"]}, precision)
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.normal(size=(VOCABULARY, EMBEDDING)).astype(np.float32),
        "weights": rng.normal(size=(EMBEDDING, 2)).astype(np.float32),
        "axes": np.array([1]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("ReduceMean", ["embedded", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
    ]
    inputs = [integers(name, "batch", "tokens") for name in ("input_ids", "attention_mask")]
    write_graph(folder / "model.onnx", nodes, inputs, [floats("logits", "batch", 2)], constants)
    return directory


def translator(directory: Path, length: int) -> Path:
    """Says w2, w3, … whatever it reads, and ends as its `length`-th token."""
    generation = {
        "decoder_start_token_id": START, "eos_token_id": [END], "max_new_tokens": 12,
        "positions": 20,
    }  # fmt: skip
    more = {"decoder_self_heads": [0], "cross_heads": [0], "head_dim": 4,
            "vocab_size": VOCABULARY, "generation": generation}  # fmt: skip
    folder = write_artifact(directory, "translation", more)
    following = np.zeros((VOCABULARY, VOCABULARY), np.float32)  # token -> logits of the next
    for token in range(VOCABULARY):
        following[token, END if token == length else min(token + 1, 6)] = 1
    write_graph(
        folder / "encoder.onnx",
        [helper.make_node("Cast", ["input_ids"], ["encoder_hidden_state"], to=TensorProto.FLOAT)],
        [integers("input_ids", "batch", "source"), integers("attention_mask", "batch", "source")],
        [floats("encoder_hidden_state", "batch", "source")],
        {},
    )
    write_graph(
        folder / "decoder.onnx",
        [
            helper.make_node("Gather", ["following", "input_ids"], ["all"]),
            helper.make_node("Squeeze", ["all", "axes"], ["logits"]),
            helper.make_node("ArgMax", ["logits"], ["best"], axis=-1, keepdims=0),
        ],
        [integers("input_ids", "batch", 1), integers("position", 1)],
        [floats("logits", "batch", VOCABULARY), integers("best", "batch")],
        {"following": following, "axes": np.array([1])},
    )
    return directory


def rows(task: str) -> Rows:
    return Rows(task, SENTENCES, None, ["yes"] * 4, ["made up"], "0")  # type: ignore[arg-type]


@pytest.mark.usefixtures("fresh_exports")
def test_classifiers_are_measured_with_multiply_adds_and_memory(tmp_path: Path) -> None:
    subjects = [
        Subject("dense", classifier(tmp_path / "a"), {"encoder_self.0": 2}),
        Subject("half", classifier(tmp_path / "b"), {"encoder_self.0": 1}),
    ]
    told: list[str] = []

    result = benchmark(
        subjects, rows=rows("classification"), config=BERT, batch_sizes=[1, 4], threads=1,
        seconds=0.001, progress=told.append,
    )  # fmt: skip

    assert (result.provider, result.device) == ("CPUExecutionProvider", "cpu")
    assert (result.precision, result.threads) == ("fp32", 1)
    assert result.lengths == "source lengths from the data"
    assert [(row.variant, row.batch_size) for row in result.rows] == [
        ("dense", 1), ("dense", 4), ("half", 1), ("half", 4),
    ]  # fmt: skip
    one, four = result.rows[2:]
    # 3, 1, 5 and 2 tokens: singly as they are, in fours padded to 5.
    assert (one.source_tokens, one.padded_source_tokens) == (2.75, 2.75)
    assert (four.source_tokens, four.padded_source_tokens) == (2.75, 5.0)

    def macs(heads: int, rows: int, tokens: int) -> int:
        """One layer of width 8 with heads of 4 and 16 neurons; two labels from the first token."""
        attention = 4 * rows * tokens * 8 * 4 * heads + 2 * rows * tokens * tokens * 4 * heads
        return attention + 2 * rows * tokens * 8 * 16 + rows * (8 * 8 + 8 * 2)

    assert four.macs_ratio == pytest.approx(macs(2, 4, 5) / macs(1, 4, 5))
    single = (sum(macs(heads, 1, tokens) for tokens in (3, 1, 5, 2)) for heads in (2, 1))
    assert one.macs_ratio == pytest.approx(next(single) / next(single))
    assert all(row.speedup is None and row.macs_ratio is None for row in result.rows[:2])
    assert all(row.peak_memory_mib and row.peak_memory_mib > 10 for row in result.rows)
    assert [line.split(":")[0] for line in told] == [
        "measuring peak memory in fresh processes", "batch size 1", "batch size 4",
    ]  # fmt: skip


def test_translators_do_equal_work(tmp_path: Path) -> None:
    """By default as much as the reference model, or a length that is asked for."""
    counts = {"encoder_self.0": 2, "decoder_self.0": 2, "cross.0": 2}
    subjects = [
        Subject("dense", translator(tmp_path / "dense", length=4), counts),
        Subject("brief", translator(tmp_path / "brief", length=2), counts),
    ]
    settings = {"rows": rows("translation"), "batch_sizes": [2], "seconds": 0.001, "memory": False}
    result = benchmark(subjects, config=MARIAN, lengths=3, **settings)

    assert result.lengths == (
        "3 source tokens; 4 generated tokens for every row, the mean of the reference model's own "
        "translations"
    )
    assert [row.target_tokens for row in result.rows] == [4.0, 4.0]
    assert [row.source_tokens for row in result.rows] == [3.0, 3.0]
    assert result.rows[1].macs_ratio == 1.0
    assert result.rows[1].peak_memory_mib is None

    result = benchmark(subjects, target_length=9, **settings)

    assert result.lengths == "source lengths from the data; 9 generated tokens for every row"
    assert [row.target_tokens for row in result.rows] == [9.0, 9.0]
    assert result.rows[1].macs_ratio is None  # without a configuration


def test_settings_that_contradict_each_other_are_errors(tmp_path: Path) -> None:
    one = Subject("dense", classifier(tmp_path / "a"), {})
    other = dataclasses.replace(one, name="int8", directory=classifier(tmp_path / "b", "int8"))

    def run(*subjects: Subject, task: str = "classification", **settings) -> None:
        benchmark(subjects, rows=rows(task), batch_sizes=[1], memory=False, **settings)

    for subjects, settings, id in (
        ([one, one], {}, "names-not-distinct"),
        ([one], {"lengths": 1_000_001}, "length-too-large"),
        ([one], {"target_length": 5}, "target-length-without-generation"),
    ):
        with raises(UsageError, id):
            run(*subjects, **settings)
    with pytest.raises(UsageError, match="21 tokens are more than the 20 that the model can"):
        run(
            Subject("dense", translator(tmp_path / "c", length=4), {}),
            task="translation",
            target_length=21,
        )
    with raises(EnvironmentProblem, "precisions-or-providers-differ"):
        run(one, other)


def test_peak_memory_is_that_of_the_run(tmp_path: Path) -> None:
    directory = classifier(tmp_path / "a")
    ballast = np.ones(2**26)  # 512 MiB here must not show there
    batches = [
        {name: np.ones((4, tokens), np.int64) for name in ("input_ids", "attention_mask")}
        for tokens in (2, 2**18)
    ]
    small, large = (measure_memory(directory, CLASSIFIER, [x], threads=1) for x in batches)

    assert ballast[-1] == 1
    assert small.host_mib < 384
    # The embedded batch alone has 4 x 2^18 x 64 values of 4 bytes: 256 MiB.
    assert large.host_mib > small.host_mib + 256
    assert (small.device_mib, large.device_mib) == (None, None)
    assert small.load_seconds > 0
    with raises(EnvironmentProblem, "memory-measurement-failed") as caught:
        measure_memory(tmp_path / "nowhere", CLASSIFIER, batches[:1])
    assert "graphs.json" in str(caught.value)
