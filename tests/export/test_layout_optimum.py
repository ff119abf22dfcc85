"""`compress export --layout optimum`: graphs run as optimum runs them, against PyTorch.

optimum itself needs transformers 4 (test_real_optimum.py has an environment for it), so what its
loaders do with the graphs is written out here
(optimum-onnx 0.1, `ORTDecoderForSeq2Seq.forward`): caches travel by position within the names that
hold `.key` or `.value`, the first step runs `decoder_model.onnx`, all others
`decoder_with_past_model.onnx`. What to expect comes from transformers' forward and `generate`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers

from compressor.errors import InputError, VerificationError
from compressor.export import optimum
from compressor.model.architectures import architecture
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.model.surgery import prune
from compressor.pipeline.run import export_checkpoint
from compressor.request.recipe import ExportRequest
from tests.helpers import toy
from tests.helpers.errors import raises
from tests.helpers.recipes import request
from tests.helpers.tiny import ragged_batch, uneven_mask

pytestmark = pytest.mark.slow


def cached_mask(layers: list[Sublayer]) -> Mask:
    """The uneven mask, with caches in every decoder layer: 1 and 4 heads where it has none."""
    keep = dict(uneven_mask(layers).keep)
    last = max(layer.index for layer in layers if layer.kind == "cross")
    keep[f"decoder_self.{last}"] = (False, True, False, False)
    keep[f"cross.{last}"] = (True,) * 4
    return Mask(keep)


def save_pruned(name: str, root: Path) -> Path:
    """A checkpoint as `compress prune` writes it."""
    chosen = uneven_mask if architecture(name).decoder is None else cached_mask
    return toy.pruned(toy.checkpoint(root / "dense", name), root / "pruned", chosen)


def export_pruned(name: str, root: Path) -> None:
    pruned = save_pruned(name, root)
    asked = request(ExportRequest, model=str(pruned), layout="optimum")
    checks = export_checkpoint(asked, root / "out")
    assert all(check.largest_difference <= check.tolerance for check in checks)


@pytest.fixture(scope="module")
def exported(once) -> Callable[[str], tuple[Checkpoint, Path]]:
    """Exports take seconds a graph, so all tests share them."""

    @functools.cache
    def shared(name: str) -> tuple[Checkpoint, Path]:
        root = once(f"optimum-{name}", functools.partial(export_pruned, name))
        return open_checkpoint(str(root / "pruned")), root / "out"

    return shared


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


class Loader:
    """What `ORTModelForSeq2SeqLM` does with the three files, in its own order."""

    def __init__(self, directory: Path) -> None:
        self.encoder = session(directory / "encoder_model.onnx")
        self.first = session(directory / "decoder_model.onnx")
        self.next = session(directory / "decoder_with_past_model.onnx")

    def encode(self, input_ids, attention_mask) -> dict[str, np.ndarray]:
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask}
        (hidden,) = self.encoder.run(["last_hidden_state"], feeds)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": attention_mask}

    def decode(self, source, tokens, past):
        """Logits and the past of the next call: a (key, value, key, value) per layer."""
        run = self.first if past is None else self.next
        values = {**source, "input_ids": tokens}
        if past is not None:
            names = [i.name for i in run.get_inputs() if ".key" in i.name or ".value" in i.name]
            values |= zip(names, sum(past, ()), strict=True)
        outputs = [output.name for output in run.get_outputs()]
        feeds = {i.name: values[i.name] for i in run.get_inputs()}
        results = dict(zip(outputs, run.run(outputs, feeds), strict=True))
        caches = [name for name in outputs if ".key" in name or ".value" in name]
        own = [results[name] for name in caches if "encoder" not in name]
        cross = [results[name] for name in caches if "encoder" in name]
        if past is not None:
            cross = [value for layer in past for value in layer[2:]]
        present = tuple((*own[i : i + 2], *cross[i : i + 2]) for i in range(0, len(own), 2))
        return results["logits"], present


def arrays(batch) -> tuple[np.ndarray, np.ndarray]:
    return batch["input_ids"].numpy(), batch["attention_mask"].numpy()


def assert_close(actual: np.ndarray, expected: torch.Tensor) -> None:
    want = expected.detach().numpy()
    assert actual.shape == want.shape
    np.testing.assert_allclose(actual, want, atol=1e-4 * np.abs(want).max())


def test_greedy_search_over_caches_is_generates(exported):
    checkpoint, directory = exported("marian")
    model = checkpoint.model
    batch = ragged_batch(model, rows=5, seed=5)
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = model.generate(**source, num_beams=1, do_sample=False)
        logits = model(**source, decoder_input_ids=expected[:, :-1]).logits
    loader = Loader(directory)
    encoded, past, steps = loader.encode(*arrays(batch)), None, []
    tokens = expected[:, :1].numpy()
    counts = checkpoint.mask.counts()
    heads = [counts[f"{kind}.{i}"] for i in range(3) for kind in ("decoder_self", "cross")]
    assert heads[4:] == [1, 4]
    for position in range(expected.shape[1] - 1):
        made, past = loader.decode(encoded, tokens, past)
        assert [x.shape[1] for layer in past for x in layer[::2]] == heads
        steps.append(made)
        assert past[0][0].shape[2] == position + 1  # where optimum reads the length of the past
        tokens = expected[:, position + 1 : position + 2].numpy()
    for path in directory.glob("*.onnx"):
        onnx.checker.check_model(path, full_check=True)
        assert b"site-packages" not in path.read_bytes()
    chosen = np.concatenate(steps, axis=1)
    assert_close(chosen, logits)
    for row, best in zip(expected.numpy(), chosen.argmax(-1), strict=True):
        length = list(row).index(2) if 2 in row else len(row) - 1  # to the end token
        assert length > 2  # or nothing would be compared
        assert list(best[:length]) == list(row[1 : length + 1])


def test_a_classifier_is_one_graph_at_the_root(exported):
    checkpoint, directory = exported("bert")
    graph = session(directory / "model.onnx")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [i.name for i in graph.get_inputs()] == names
    for rows in (5, 1):
        batch = ragged_batch(checkpoint.model, rows=rows)
        feeds = {key: value.numpy() for key, value in batch.items()}
        types = torch.arange(batch["input_ids"].numel()).view_as(batch["input_ids"]) % 2
        batch["token_type_ids"], feeds["token_type_ids"] = types, types.numpy()
        with torch.no_grad():
            expected = checkpoint.model(**batch).logits
        assert_close(graph.run(["logits"], feeds)[0], expected)


def test_graphs_of_another_model_are_caught(exported):
    """The pruned model's own graphs must fail beside a model with other heads."""
    checkpoint, directory = exported("marian")
    dense = open_checkpoint(str(directory.parent / "dense"))
    batches = [ragged_batch(dense.model, rows=3)]
    optimum.verify_translator(checkpoint.model, directory, batches)
    with raises(VerificationError, "onnx-translation-differs"):
        optimum.verify_translator(dense.model, directory, batches)


@pytest.mark.parametrize("kind", ["decoder_self", "cross"])
def test_a_decoder_layer_without_caches_is_refused(kind: str, tmp_path):
    checkpoint = open_checkpoint(str(toy.translator(tmp_path / "dense")))
    mask = checkpoint.mask.without((f"{kind}.1", head) for head in range(4))
    pruned = replace(checkpoint, model=prune(checkpoint.model, checkpoint.layers, mask), mask=mask)
    with raises(InputError, "layer-without-cache") as caught:
        optimum.export_optimum(pruned, [], tmp_path / "out")
    assert f"{kind}.1" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_tokenizers_bear_the_names_that_transformers_4_knows(exported, tmp_path):
    checkpoint, directory = exported("bert")
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    ids = transformers.AutoTokenizer.from_pretrained(directory)("w5 w7")["input_ids"]
    assert ids == checkpoint.tokenizer("w5 w7")["input_ids"]
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"tokenizer_class": "MBartTokenizer", "extra_special_tokens": ["de_DE"]}')
    optimum.use_earlier_names(path)
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "tokenizer_class": "MBartTokenizer", "additional_special_tokens": ["de_DE"],
    }  # fmt: skip
