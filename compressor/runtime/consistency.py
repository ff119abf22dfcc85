"""Does `graphs.json` describe the graphs and the tokenizer that lie beside it?

Sizes that differ would give wrong answers or fail in the middle of the work, so they are compared
when an artifact is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.errors import InputError, cannot_read
from compressor.runtime.artifact import (
    CTRANSLATE2_DIRECTORY,
    CTRANSLATE2_FILES,
    GRAPH_DIRECTORY,
    Artifact,
    EncoderArtifact,
    TranslationArtifact,
    read_artifact,
)
from compressor.runtime.decoder import (
    BEST,
    FLOATS,
    ROWS,
    SELECT_CACHES,
    SELECT_PAST,
    selected,
    writes_in_place,
)
from compressor.runtime.device_buffers import FILLED, HISTORY, LENGTHEN, STATE, after
from compressor.runtime.engines.engine import Engine, LogitsModel
from compressor.runtime.packing import OFFSETS, STARTS, TOKENS
from compressor.runtime.text import TextTokenizer
from compressor.storage.manifest import GRAPHS_FILE, require_no_links_out, require_unchanged

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

MASK = "attention_mask"


def read_description(directory: Path, verify: bool) -> Artifact:
    """`read_artifact`; its files lie within the directory.

    Args:
        verify: check `graphs.json` against the manifest first.

    Raises:
        InputError: not an artifact, `graphs.json` was changed, or a file lies outside.
    """
    if verify:
        require_unchanged(directory, [f"{GRAPH_DIRECTORY}/{GRAPHS_FILE}"], warn=False)
    artifact = read_artifact(directory)
    require_inside(directory, artifact)
    return artifact


def require_files(
    directory: Path,
    artifact: Artifact,
    engine: type[Engine],
    precisions: Sequence[str] | None,
    *,
    verify: bool = True,
) -> None:
    """Check that what an engine opens can be read, and is what the directory's manifest lists.

    Args:
        precisions: whose files are checked; None: those of the engine's default one.
        verify: look at the manifest, too.

    Raises:
        InputError: a file cannot be read, is damaged or not listed.
        UsageError: the artifact has nothing that the engine could open.
    """
    chosen = precisions or [engine.default_precision(artifact)]
    files = [name for p in chosen for name in engine.files(directory, artifact, p)]
    for path in (directory / given for name in files for given in (name, f"{name}_data")):
        try:
            path.open("rb").close()  # engines say why they cannot, or end their process
        except FileNotFoundError:  # told by who needs it; not every graph has weights beside it
            continue
        except OSError as error:
            raise cannot_read(path, error) from error
    if verify:
        require_unchanged(directory, files)


def require_inside(directory: Path, artifact: Artifact) -> None:
    """Check that no file of the graphs is a link to a place outside of the artifact.

    Links of the Hugging Face hub's cache, from `snapshots` to `blobs`, may be.

    Raises:
        InputError: one is.
    """
    names = {name for chosen in artifact.precisions for name in artifact.used_files(chosen)}
    # Weights lie beside their graph, in a file that `graphs.json` does not name.
    names |= {f"{name}_data" for name in names} | {f"{GRAPH_DIRECTORY}/{GRAPHS_FILE}"}
    names |= {f"{CTRANSLATE2_DIRECTORY}/{name}" for name in CTRANSLATE2_FILES}
    require_no_links_out(directory, sorted(names))


def require_translator(
    artifact: TranslationArtifact,
    encoder: InferenceSession,
    decoder: InferenceSession,
    select: Mapping[str, InferenceSession],
    tokens: int,
    where: Path,
) -> None:
    """Check a translator's graphs: inputs, head counts, head size, number of tokens.

    Args:
        select: role -> graph that takes rows of caches.
        tokens: how many the decoder scores.
        where: the artifact, for messages.

    Raises:
        InputError: they are not what `graphs.json` says.
    """
    cross = _caches("cross", artifact.cross_heads)
    past = _caches("past", artifact.decoder_self_heads)
    heads = (cross | past).items()
    expected = {name: f"{count} heads of {artifact.head_dim}" for name, count in heads}
    inputs = _shapes(decoder.get_inputs())
    # A decoder without heads in its cross-attention reads no mask.
    read, on_device = set(inputs) - {MASK}, LENGTHEN in select
    if on_device:
        read -= set(STATE)
    _require(where, "decoder's inputs", read, {"input_ids", "position", *expected})
    for name, shape in expected.items():
        _require(where, f"decoder's {name}", _cache_part(inputs[name]), shape)
    made = _shapes(encoder.get_outputs())
    for name in cross:
        shown = _cache_part(made[name]) if name in made else "no such output"
        _require(where, f"encoder's {name}", shown, expected[name])
    reads = set(_shapes(encoder.get_inputs()))
    # Twice: the search feeds these two, and batches hold what the description names.
    _require(where, "encoder's inputs", reads, {"input_ids", MASK})
    _require(where, "encoder's inputs", reads, set(artifact.inputs))
    outputs = _shapes(decoder.get_outputs())
    wanted = {"logits", BEST, *(name.replace("past", "present") for name in past)}
    if on_device:
        wanted |= {after(name) for name in ("position", FILLED, HISTORY)}
    _require(where, "decoder's outputs", set(outputs), wanted)
    _require(where, "number of tokens that the decoder scores", outputs["logits"][-1], tokens)
    types, made_types = _types(decoder), _types(encoder)
    _require(where, "type of the decoder's best tokens", types[BEST], "tensor(int64)")
    _require_floats(where, types, ["logits", *expected])
    for name in cross:
        _require(where, f"type of the encoder's {name}", made_types[name], types[name])
    if writes_in_place(decoder) and not on_device:  # into NumPy's buffers, which are float32
        for name in expected:
            _require(where, f"type of the decoder's {name}", types[name], "tensor(float)")
    for role in (SELECT_PAST, SELECT_CACHES):
        if role not in select:
            continue
        graph = select[role]
        caches = past if role == SELECT_PAST else expected
        _require(where, f"{role}'s inputs", set(_shapes(graph.get_inputs())), {ROWS, *caches})
        selections = {selected(name) for name in caches}
        _require(where, f"{role}'s outputs", set(_shapes(graph.get_outputs())), selections)
        taken = _types(graph)
        for name in caches:
            _require(where, f"type of {role}'s {name}", taken[name], types[name])


def require_encoder(artifact: EncoderArtifact, model: LogitsModel, where: Path) -> None:
    """Check the graph of an encoder with a head: inputs and number of logits.

    Raises:
        InputError: they are not what `graphs.json` says.
    """
    outputs = _shapes(model.outputs)
    _require(where, "graph's outputs", set(outputs), {"logits"})
    _require(where, "number of labels", outputs["logits"][-1], artifact.outputs)
    _require(where, "graph's inputs", set(_shapes(model.inputs)), set(artifact.inputs))
    dimensions = 3 if artifact.every_token else 2
    _require(where, "number of the logits' dimensions", len(outputs["logits"]), dimensions)
    _require_floats(where, {value.name: value.type for value in model.outputs}, ["logits"])


def require_packed(
    artifact: Artifact, model: LogitsModel, packed: InferenceSession, where: Path
) -> None:
    """Check the graph that computes nothing for padding against the one that does.

    Raises:
        InputError: it has other inputs or outputs.
    """
    wanted, outputs = _shapes(model.outputs), _shapes(packed.get_outputs())
    _require(where, "packed graph's outputs", set(outputs), set(wanted))
    for name, shape in wanted.items():
        _require(where, f"packed graph's {name}", outputs[name][-1], shape[-1])
    known = {*artifact.inputs, TOKENS, OFFSETS, STARTS}
    _require(where, "packed graph's inputs", known | set(_shapes(packed.get_inputs())), known)


def require_ids(tokenizer: TextTokenizer, vocabulary: int, path: Path) -> None:
    """Raise `InputError` if a tokenizer gives ids that a model has no embeddings for."""
    if tokenizer.highest_id >= vocabulary:
        raise InputError(
            f"{path} has ids up to {tokenizer.highest_id}, but the model's vocabulary is of "
            f"{vocabulary} tokens; export the model again",
            id="tokenizer-of-another-model",
        )


def _caches(prefix: str, heads: Iterable[int]) -> dict[str, int]:
    """Name of each cache -> heads; layers without heads have none."""
    return {
        f"{prefix}_{part}.{layer}": count
        for layer, count in enumerate(heads)
        if count
        for part in ("key", "value")
    }


def _cache_part(shape: list[object]) -> str:
    """Heads and head size of a cache [batch, heads, length, head_dim]."""
    return f"{shape[1]} heads of {shape[3]}" if len(shape) == 4 else f"shape {shape}"


def _shapes(values: Iterable[object]) -> dict[str, list[object]]:
    # A damaged graph may have logits without dimensions, whose last one is compared.
    return {v.name: list(v.shape) or [None] for v in values}  # type: ignore[attr-defined]


def _types(session: InferenceSession) -> dict[str, str]:
    return {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}


def _require_floats(where: Path, types: Mapping[str, str], names: Iterable[str]) -> None:
    for name in names:
        if types[name] not in FLOATS:
            raise InputError(
                f"{where}: the graph's {name} is a {types[name]}, not one of {', '.join(FLOATS)}; "
                "export the model again",
                id="graphs-disagree",
            )


def _require(where: Path, what: str, actual: object, wanted: object) -> None:
    if actual == wanted:
        return
    if isinstance(actual, set) and isinstance(wanted, set):
        names = sorted(map(str, actual ^ wanted))
        raise InputError(
            f"{where}: the {what} and {GRAPHS_FILE} disagree about {', '.join(names[:5])}; export "
            "the model again",
            id="graphs-disagree",
        )
    raise InputError(
        f"{where}: the {what} is {actual}, but {GRAPHS_FILE} says {wanted}; export the model again",
        id="graphs-disagree",
    )
