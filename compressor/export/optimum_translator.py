"""A translator's graphs in the layout of Hugging Face optimum; see `compressor.export.optimum`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from compressor.errors import InputError
from compressor.export import graphs
from compressor.export.attention import (
    FORMS,
    MASKED,
    CrossAttention,
    CrossKeysValues,
    DecoderSelfAttention,
    StepState,
    additive_mask,
    by_layer,
    graph_attention,
)
from compressor.export.graphs import BATCH, PAST, SOURCE
from compressor.export.translator_graphs import TranslatorEncoder, example_caches, export_encoder
from compressor.export.verify import (
    logit_check,
    relative_difference,
    require_tie,
    translation_check,
)
from compressor.export.vocabulary import OutputLayer
from compressor.model.architectures import architecture_of
from compressor.model.sublayers import Mask, Sublayer
from compressor.results import Check
from compressor.runtime.session import open_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
DECODER_WITH_PAST = "decoder_with_past_model.onnx"
CHECKED_STEPS = 16  # tokens decoded greedily per checked sentence
_STEPS = torch.export.Dim("steps", min=1)
# A layer's caches in optimum's order: of its self-attention, then of its cross-attention.
_PARTS = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")


class _ManyTokens:
    """Splits and merges heads of any number of tokens; the blocks of `FORMS` take one token."""

    heads: int
    head_dim: int

    def split(self, projected: Tensor, parts: int) -> Sequence[Tensor]:
        """[batch, tokens, parts x heads x head_dim] -> parts of [batch, heads, tokens, head_dim]"""
        heads = projected.unflatten(-1, (parts * self.heads, self.head_dim)).transpose(1, 2)
        return heads.split(self.heads, dim=1)

    def merge(self, mixed: Tensor) -> Tensor:
        """[batch, heads, tokens, head_dim] -> [batch, tokens, heads x head_dim]"""
        return mixed.transpose(1, 2).flatten(-2)


class SelfAttention(_ManyTokens, DecoderSelfAttention):
    """Several steps, under a causal mask."""

    masked = True


class ManyCrossAttention(_ManyTokens, CrossAttention):
    """Several steps against the encoder's keys and values."""


def causal_mask(steps: int, past: int) -> Tensor:
    """[1, 1, steps, past + steps]: 0 for tokens up to the step's own, `MASKED` for later ones."""
    position = torch.arange(steps)[:, None] + past  # [steps, 1]
    later = torch.arange(past + steps)[None] > position  # [steps, past + steps]
    return (later.to(torch.float32) * MASKED)[None, None]


class _Decoder(nn.Module):
    """Base of both decoder graphs: a transformers decoder that reads a `StepState`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.decoder = model.get_decoder()  # type: ignore[operator]
        self.output = OutputLayer(model, None)
        self.width = self.output.weight.shape[1]

    def logits(self, input_ids: Tensor, source_mask: Tensor, past: int, state: StepState) -> Tensor:
        """[batch, steps, vocabulary]; `state` then holds the present keys and values."""
        mask = causal_mask(input_ids.shape[1], past)
        return self.output(
            state.decode(self.decoder, input_ids, mask, additive_mask(source_mask), self.width)
        )


class FirstDecoder(_Decoder):
    """The first step, or several at once; computes the caches of both kinds of attention."""

    def __init__(self, model: nn.Module, cross: CrossKeysValues) -> None:
        super().__init__(model)
        self.cross = cross

    def forward(
        self, encoder_attention_mask: Tensor, input_ids: Tensor, encoder_hidden_states: Tensor
    ) -> list[Tensor]:
        tensors = self.cross(encoder_hidden_states)  # key, value, key, value, …
        cross = by_layer([x.index for x in self.cross.used], tensors)
        state = StepState(0, cross, {})
        logits = self.logits(input_ids, encoder_attention_mask, 0, state)
        return [logits, *(t for i in sorted(cross) for t in (*state.present[i], *cross[i]))]


class NextDecoder(_Decoder):
    """Further steps: their position is the length of the past."""

    def forward(
        self, encoder_attention_mask: Tensor, input_ids: Tensor, past: list[Tensor]
    ) -> list[Tensor]:
        layers = range(len(past) // len(_PARTS))
        caches = [past[len(_PARTS) * i :][: len(_PARTS)] for i in layers]
        length = past[0].shape[2]  # of [batch, heads, past, head_dim]
        state = StepState(
            length,
            {i: (caches[i][2], caches[i][3]) for i in layers},
            {i: (caches[i][0], caches[i][1]) for i in layers},
        )
        logits = self.logits(input_ids, encoder_attention_mask, length, state)
        # optimum reuses the first step's caches of the cross-attention.
        return [logits, *(t for i in layers for t in state.present[i])]


def require_caches(mask: Mask, where: str) -> None:
    """Check that every decoder layer has caches.

    Raises:
        InputError: a decoder layer lost all heads of its self- or cross-attention.
    """
    empty = [
        name
        for name, count in mask.counts().items()
        if not count and name.startswith(("decoder_self.", "cross."))
    ]
    if empty:
        raise InputError(
            f"{where} has no heads left in {', '.join(empty)}, and the optimum layout passes keys "
            "and values of every decoder layer; prune with --floor 1, or use --layout compress",
            id="layer-without-cache",
        )


def export_translator(
    model: nn.Module, layers: Sequence[Sublayer], mask: Mask, directory: Path
) -> None:
    """Write the encoder and both decoders; every decoder layer must have heads of both kinds."""
    model.eval()
    forms = {**FORMS, "decoder_self": SelfAttention, "cross": ManyCrossAttention}
    # Created before the attention is replaced, since it reads the cross-attention's projections.
    cross = CrossKeysValues(model, layers, mask)
    with graph_attention(model, layers, mask, forms):
        encoder = TranslatorEncoder(model, (), mask)  # without caches, which the decoder computes
        export_encoder(encoder, directory / ENCODER, "last_hidden_state")
        _export_first(FirstDecoder(model, cross), directory / DECODER)
        _export_next(NextDecoder(model), layers, mask, directory / DECODER_WITH_PAST)


def _ids(length: int) -> Tensor:
    # Two rows, since the tracer treats a size of 1 as fixed.
    return torch.ones(2, length, dtype=torch.long)


def _export_first(graph: FirstDecoder, path: Path) -> None:
    names = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    example = (_ids(5), _ids(3), torch.randn(2, 5, graph.width))
    shapes = {name: {0: BATCH, 1: SOURCE} for name in names} | {"input_ids": {0: BATCH, 1: _STEPS}}
    present = [f"present.{x.index}.{part}" for x in graph.cross.used for part in _PARTS]
    graphs.export_graph(graph, example, names, ["logits", *present], shapes, path)


def _export_next(graph: NextDecoder, layers: Sequence[Sublayer], mask: Mask, path: Path) -> None:
    kinds = ("decoder_self", "cross")
    decoder_self, cross = ([x for x in layers if x.kind == kind] for kind in kinds)
    past: list[Tensor] = []
    dims: list[dict[int, Any]] = []
    for pair in zip(decoder_self, cross, strict=True):
        for layer, length, dim in zip(pair, (4, 5), (PAST, SOURCE), strict=True):
            tensors, dynamic = example_caches([layer], mask, length, dim)
            past, dims = past + tensors, dims + dynamic
    shapes = {
        "encoder_attention_mask": {0: BATCH, 1: SOURCE},
        "input_ids": {0: BATCH, 1: _STEPS},
        "past": dims,
    }
    names = ["encoder_attention_mask", "input_ids"]
    names += [f"past_key_values.{x.index}.{part}" for x in decoder_self for part in _PARTS]
    present = [f"present.{x.index}.{part}" for x in decoder_self for part in _PARTS[:2]]
    graphs.export_graph(graph, (_ids(5), _ids(3), past), names, ["logits", *present], shapes, path)


class OptimumTranslator:
    """Runs the three graphs as optimum does: caches are passed from outputs to inputs by name."""

    def __init__(self, directory: Path) -> None:
        names = (ENCODER, DECODER, DECODER_WITH_PAST)
        self.encoder, self.first, self.next = (open_session(directory / name) for name in names)

    def encode(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs of all decoder calls for these sources."""
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask}
        (hidden,) = self.encoder.run(["last_hidden_state"], feeds)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": attention_mask}

    def decode(self, state: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
        """Logits [batch, steps, vocabulary] of `tokens` [batch, steps]; the caches in `state` grow.

        While `state` has no caches, the graph without a past is run.
        """
        has_past = any(name.startswith("past_key_values.") for name in state)
        results = _run(self.next if has_past else self.first, {**state, "input_ids": tokens})
        for name, value in results.items():
            if name.startswith("present."):
                state[name.replace("present", "past_key_values", 1)] = value
        return results["logits"]


def _run(session: InferenceSession, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    # With a past, the decoder does not read the encoder's hidden states.
    feeds = {i.name: values[i.name] for i in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))


@torch.no_grad()
def verify_translator(
    model: nn.Module, directory: Path, batches: Sequence[Mapping[str, Tensor]]
) -> list[Check]:
    """Decode greedily with the graphs, and compare tokens and logits with PyTorch's along them.

    Both decoders are also given several tokens at once, which needs their causal masks.

    Args:
        batches: `input_ids`, `attention_mask` and `decoder_input_ids`, whose first column starts.

    Raises:
        VerificationError: a logit or a token differs. A token may differ where PyTorch's own two
            best logits are closer together than the tolerance.
    """
    runtime = OptimumTranslator(directory)
    positions = architecture_of(model).most_positions(model.config)
    # A model with a table of positions cannot decode beyond its end.
    steps = min(CHECKED_STEPS, positions or CHECKED_STEPS)
    rows, ties = 0, 0
    differences: list[float] = []
    for batch in batches:
        source = {name: batch[name] for name in ("input_ids", "attention_mask")}
        start = runtime.encode(*(value.numpy() for value in source.values()))
        state, tokens = dict(start), batch["decoder_input_ids"][:, :1].numpy()
        stepwise = []  # [batch, 1, vocabulary] each
        for _ in range(steps):
            stepwise.append(runtime.decode(state, tokens[:, -1:]))
            tokens = np.concatenate([tokens, stepwise[-1].argmax(-1)], axis=1)
        given = tokens[:, :-1]
        expected = model(
            **source, decoder_input_ids=torch.from_numpy(given), use_cache=False
        ).logits
        # A new state, since `decode` has added caches to the other one.
        state = dict(start)
        halves = [runtime.decode(state, part) for part in np.array_split(given, 2, axis=1)]
        both = [
            relative_difference(np.concatenate(parts, axis=1), expected.numpy())
            for parts in (stepwise, halves)
        ]
        differences.append(float(np.max(both)))  # NaN wins
        for row, want in enumerate(expected.argmax(-1).tolist()):
            rows += 1
            if want != tokens[row, 1:].tolist():
                require_tie(want, tokens[row, 1:].tolist(), expected[row])
                ties += 1
    return [logit_check(differences), translation_check(rows * steps, rows, ties)]
