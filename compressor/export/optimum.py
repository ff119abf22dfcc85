"""The file layout that the ONNX Runtime loaders of Hugging Face optimum open.

Names of files, inputs and outputs are those of optimum-onnx 0.1: `optimum/onnxruntime/constants.py`
(files) and `modeling_seq2seq.py` (`ORTDecoderForSeq2Seq.forward`: which caches it passes where).
Caches are passed by name from a decoder's outputs to its inputs, so each layer may have its own
number of heads; but each layer must have caches, since they are matched layer by layer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.export import graphs
from compressor.export.attention import (
    MASKED,
    CrossKeysValues,
    KeysValues,
    StepState,
    additive_mask,
    by_layer,
    graph_attention,
)
from compressor.export.graphs import BATCH, PAST, SOURCE
from compressor.export.task_graphs import Batches, Network
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.export.translator_graphs import TranslatorEncoder, example_caches, export_encoder
from compressor.export.verify import logit_check, relative_difference, translation_check
from compressor.export.vocabulary import OutputLayer
from compressor.model.architectures import architecture_of
from compressor.model.checkpoint import Checkpoint, save_settings
from compressor.model.pruning_record import without_code
from compressor.results import Check
from compressor.runtime.session import open_session
from compressor.storage.files import write_json
from compressor.tasks import TASKS, Batch

ENCODER, FIRST, NEXT = "encoder_model", "decoder_model", "decoder_with_past_model"
_CHECKED = 16  # tokens decoded greedily per checked sentence
_STEPS = torch.export.Dim("steps", min=1)


def export_optimum(
    checkpoint: Checkpoint, batches: Sequence[Batch], directory: Path
) -> list[Check]:
    """Write `directory` in optimum's layout: the graphs, which are verified, then the other files.

    Raises:
        InputError: the layout does not support the model.
        VerificationError: an output differs from PyTorch's.
    """
    model, task_graphs = checkpoint.model, TASKS[checkpoint.task].graphs
    network = Network(checkpoint, model, checkpoint.mask)  # the loaders number all tokens
    inputs = [batch.inputs() for batch in batches]
    checks: list[Check] = task_graphs.export_optimum(network, directory, inputs)
    # Written last, since no loader opens a directory without config.json.
    config: Any = copy.deepcopy(model.config)
    without_code(config)  # the graphs need none
    save_settings(checkpoint, model, directory, config)
    use_earlier_names(directory / "tokenizer_config.json")
    TokenizerProbe.of(checkpoint, ()).check_saved(directory)
    return checks


def use_earlier_names(path: Path) -> None:
    """Rename in `tokenizer_config.json` what transformers 5 renamed: optimum needs transformers 4.

    transformers 5 still reads the earlier names.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(path, config)


class _Decoder(nn.Module):
    """Base of both decoder graphs, for one or several tokens at once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder = model.get_decoder()
        self.output = OutputLayer(model, None)
        self.width = self.output.weight.shape[1]

    def logits(
        self,
        input_ids: Tensor,
        source_mask: Tensor,
        length: int,  # of the past
        cross: KeysValues,
        past: KeysValues,
    ) -> tuple[Tensor, KeysValues]:
        """Logits [batch, steps, tokens], and the keys and values of self-attention."""
        steps = input_ids.shape[1]
        position = torch.arange(steps)[:, None] + length  # [steps, 1]
        later = torch.arange(length + steps)[None] > position  # [steps, past + steps]
        mask = (later.to(torch.float32) * MASKED)[None, None]
        state = StepState(length, cross, past)
        source = additive_mask(source_mask)
        hidden = state.decode(self.decoder, input_ids, mask, source, self.width)
        return self.output(hidden), state.present


class _FirstDecoder(_Decoder):
    """Computes the caches of both kinds of attention."""

    def __init__(self, model: Any, cross: CrossKeysValues) -> None:
        super().__init__(model)
        self.cross = cross

    def forward(
        self, encoder_attention_mask: Tensor, input_ids: Tensor, encoder_hidden_states: Tensor
    ) -> list[Tensor]:
        cross = by_layer([x.index for x in self.cross.used], self.cross(encoder_hidden_states))
        logits, present = self.logits(input_ids, encoder_attention_mask, 0, cross, {})
        return [logits, *(x for i in sorted(cross) for x in (*present[i], *cross[i]))]


class _NextDecoder(_Decoder):
    """Has all layers' caches as inputs; those of the cross-attention stay as they are."""

    def forward(
        self, encoder_attention_mask: Tensor, input_ids: Tensor, past: list[Tensor]
    ) -> list[Tensor]:
        layers = range(len(past) // 4)
        decoder_self, cross = (
            {i: (past[4 * i + n], past[4 * i + n + 1]) for i in layers} for n in (0, 2)
        )
        length = past[0].shape[2]  # of [batch, heads, past, head_dim]
        logits, present = self.logits(
            input_ids, encoder_attention_mask, length, cross, decoder_self
        )
        return [logits, *(x for i in layers for x in present[i])]


def export_translator(network: Network, directory: Path) -> None:
    """Write the encoder and both decoders.

    Raises:
        InputError: a decoder layer lost all heads of its self- or cross-attention.
    """
    model, layers, mask = network.model.eval(), network.checkpoint.layers, network.mask
    attentions = [x for x in layers if x.kind in ("decoder_self", "cross")]
    empty = [x.name for x in attentions if not mask.kept(x.name)]
    if empty:
        raise InputError(
            f"{network.checkpoint.name} has no heads left in {', '.join(empty)}, and the optimum "
            "layout passes keys and values of every decoder layer; prune with --floor 1, or use "
            "--layout compress",
            id="layer-without-cache",
        )
    directory.mkdir(parents=True, exist_ok=True)
    # Two rows, since the tracer treats a size of 1 as fixed.
    source_mask, tokens = (torch.ones(2, size, dtype=torch.long) for size in (5, 3))
    names = ["encoder_attention_mask", "input_ids"]
    shapes: dict[str, Any] = {names[0]: {0: BATCH, 1: SOURCE}, names[1]: {0: BATCH, 1: _STEPS}}
    caches, past, dims = list[str](), list[Tensor](), list[dict[int, Any]]()
    for layer in sorted(attentions, key=lambda x: (x.index, x.kind != "decoder_self")):
        part, length, dim = (
            ("decoder", 4, PAST) if layer.kind == "decoder_self" else ("encoder", 5, SOURCE)
        )
        tensors, dynamic = example_caches([layer], mask, length, dim)
        caches += [f"{layer.index}.{part}.key", f"{layer.index}.{part}.value"]
        past, dims = past + tensors, dims + dynamic
    # Created before the attention is replaced, since it reads the cross-attention's projections.
    cross = CrossKeysValues(model, layers, mask)
    with graph_attention(model, layers, mask, one_token=False):
        encoder = TranslatorEncoder(model, (), mask)  # without caches, which the decoder computes
        export_encoder(encoder, directory / f"{ENCODER}.onnx", "last_hidden_state")
        first = _FirstDecoder(model, cross)
        graphs.export_graph(
            first, (source_mask, tokens, torch.randn(2, 5, first.width)),
            [*names, "encoder_hidden_states"], ["logits", *(f"present.{x}" for x in caches)],
            shapes | {"encoder_hidden_states": shapes[names[0]]}, directory / f"{FIRST}.onnx",
        )  # fmt: skip
        grown = [f"present.{x}" for x in caches if "decoder" in x]
        graphs.export_graph(
            _NextDecoder(model), (source_mask, tokens, past),
            [*names, *(f"past_key_values.{x}" for x in caches)], ["logits", *grown],
            shapes | {"past": dims}, directory / f"{NEXT}.onnx",
        )  # fmt: skip


@torch.no_grad()
def verify_translator(model: Any, directory: Path, batches: Batches) -> list[Check]:
    """Decode greedily with the graphs, and compare tokens and logits with PyTorch's along them.

    Both decoders are also run on several tokens at once, which needs their causal masks.

    Raises:
        VerificationError: a logit differs, or a token where PyTorch's best two logits are no tie.
    """
    encoder, first, following = (
        open_session(directory / f"{name}.onnx") for name in (ENCODER, FIRST, NEXT)
    )

    def decode(state: dict[str, Any], tokens: Any) -> Any:
        """Logits [rows, steps, tokens] of tokens [rows, steps]; the caches in `state` grow."""
        has_past = any(name.startswith("past_key_values.") for name in state)
        session, values = following if has_past else first, {**state, "input_ids": tokens}
        names = [value.name for value in session.get_outputs()]
        logits, *caches = session.run(names, {x.name: values[x.name] for x in session.get_inputs()})
        grown = [name.replace("present", "past_key_values", 1) for name in names[1:]]
        state.update(zip(grown, caches, strict=True))
        return logits

    # A model with a table of positions cannot decode beyond its end.
    steps = min(_CHECKED, architecture_of(model).most_positions(model.config) or _CHECKED)
    differences: list[float] = []

    def rows() -> Iterator[tuple[list[int], list[int], Tensor]]:
        for batch in batches:
            source = {name: batch[name] for name in ("input_ids", "attention_mask")}
            feeds = {name: value.numpy() for name, value in source.items()}
            (hidden,) = encoder.run(None, feeds)
            mask = feeds["attention_mask"]
            start = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
            state, tokens = dict(start), batch["decoder_input_ids"][:, :1].numpy()
            stepwise = []  # [rows, 1, tokens] each
            for _ in range(steps):
                stepwise.append(decode(state, tokens[:, -1:]))
                tokens = np.concatenate([tokens, stepwise[-1].argmax(-1)], axis=1)
            targets = tokens[:, :-1]
            forced = {**source, "decoder_input_ids": torch.from_numpy(targets)}
            expected = model(**forced, use_cache=False).logits
            state = dict(start)
            halves = [decode(state, x) for x in np.array_split(targets, 2, axis=1)]
            both = (np.concatenate(parts, axis=1) for parts in (stepwise, halves))
            differences.append(
                float(np.max([relative_difference(x, expected.numpy()) for x in both]))
            )  # NaN if any is
            yield from zip(
                expected.argmax(-1).tolist(), tokens[:, 1:].tolist(), expected, strict=True
            )

    translations = translation_check(rows())
    return [logit_check(differences), translations]
