"""What an artifact says about itself in `onnx/graphs.json`, and the check of its files.

Both when it is opened, and never again: what a file says that the manifest lists is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from compressor.errors import InputError, UsageError, cannot_read, did_you_mean
from compressor.runtime.batching import check_limits
from compressor.storage.input_files import inner_path, parse_json, read_json, read_text
from compressor.storage.manifest import GRAPHS_FILE, require_no_links_out, require_unchanged

GRAPH_DIRECTORY = "onnx"
CTRANSLATE2_DIRECTORY = "ctranslate2"
# The files that CTranslate2 reads in it.
CTRANSLATE2_FILES = (
    "config.json", "model.bin", "shared_vocabulary.json", "source_vocabulary.json",
    "target_vocabulary.json",
)  # fmt: skip

CPU_ONLY = ("int8",)  # onnxruntime has no CUDA kernels for products of unsigned bytes

# How a cross-encoder makes a score of its one logit.
Activation = Literal["identity", "sigmoid"]
FileName = NewType("FileName", str)  # of a file in the same directory
Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What `graphs.json` says of every artifact; tasks have further entries."""

    schema: Literal[1]
    task: str
    precisions: Mapping[str, Mapping[str, FileName]]
    default_precision: str
    tokenizer: FileName
    max_source_tokens: int
    truncation_side: Literal["right", "left"] = "right"  # where tokens of long texts are left out
    pad_token_id: int
    inputs: list[Literal["input_ids", "attention_mask", "token_type_ids"]]
    labels: list[str] | None = None  # of classes, in the order of the logits
    # Precision -> the engine that was the fastest in it on the CPU; None where one was measured.
    fastest_engines: Mapping[str, str] | None = None
    # Precision -> the device that its graphs are made for, where they run on no other.
    made_for: Mapping[str, Literal["cuda"]] | None = None

    def only_device(self, precision: str) -> str | None:
        """The device that the graphs of a precision are made for; None: they run on all."""
        return (self.made_for or {}).get(precision)

    def used_files(self, precision: str) -> list[str]:
        """Files that are opened for one precision, as paths from the artifact's directory."""
        names = [self.tokenizer, *self.precisions.get(precision, {}).values()]
        _, tokens = self.scored or (0, None)
        return [f"{GRAPH_DIRECTORY}/{name}" for name in (*names, tokens) if name is not None]

    @property
    def scored(self) -> tuple[int, str | None] | None:
        """Size of a decoder's vocabulary, and the file with the tokens it scores (None: all)."""
        return None

    @property
    def direction(self) -> tuple[str | None, str | None]:
        """Codes of the languages that it translates from and into, as far as they are known."""
        return None, None

    def file(self, role: str, precision: str | None) -> str:
        """Name of the graph with that role; UsageError for a precision that is not there."""
        chosen = precision or self.default_precision
        if chosen not in self.precisions:
            raise UsageError(
                f"precision {chosen!r} is not in this artifact, which has "
                f"{', '.join(sorted(self.precisions))}; choose one of those, or export it",
                id="precision-not-in-artifact",
            )
        return self.precisions[chosen][role]


@dataclass(frozen=True, kw_only=True)
class EncoderArtifact(Artifact):
    @property
    def outputs(self) -> int:
        """How many logits a row has, or a token."""
        return 1


@dataclass(frozen=True, kw_only=True)
class ClassificationArtifact(EncoderArtifact):
    labels: list[str]

    @property
    def outputs(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class RegressionArtifact(EncoderArtifact):
    activation: Activation = "identity"


@dataclass(frozen=True, kw_only=True)
class RerankingArtifact(EncoderArtifact):
    classes: Literal[1, 2]
    activation: Activation = "identity"

    @property
    def outputs(self) -> int:
        return self.classes


@dataclass(frozen=True, kw_only=True)
class EmbeddingArtifact(EncoderArtifact):
    width: int
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""

    @property
    def outputs(self) -> int:
        return self.width


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How to decode; names and meanings are those of transformers' `GenerationConfig`.

    Lengths include the start token, but for `max_new_tokens`, which takes precedence, and
    `positions`: the most tokens that the decoder can generate (None: not known).
    """

    decoder_start_token_id: int
    eos_token_id: list[int]
    max_length: int | None = None
    max_new_tokens: int | None = None
    positions: int | None = None
    min_length: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: Literal[True, False, "never"] = False
    forced_bos_token_id: int | None = None
    forced_eos_token_id: list[int] | int | None = None
    suppress_tokens: list[int] = field(default_factory=list)
    no_repeat_ngram_size: int = 0
    renormalize_logits: bool = False

    @property
    def limit(self) -> int:
        """The most tokens to generate, the start token not counted."""
        limit = self.max_new_tokens
        if limit is None:
            limit = (self.max_length or 0) - 1  # one of the two is written
        return limit if self.positions is None else min(limit, self.positions)

    def with_options(self, num_beams: int | None, max_new_tokens: int | None) -> Generation:
        """A copy with what is not None replaced; UsageError for what the decoder cannot do."""
        options: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        check_limits(**options)
        if max_new_tokens is not None and max_new_tokens > (self.positions or max_new_tokens):
            raise UsageError(
                f"{max_new_tokens} tokens are more than the {self.positions} that the model can "
                "generate; ask for fewer",
                id="length-beyond-positions",
            )
        return replace(self, **{k: v for k, v in options.items() if v is not None})

    def with_length(self, tokens: int) -> Generation:
        """A greedy copy that generates exactly `tokens` tokens; errors as `with_options`."""
        fixed = self.with_options(1, tokens)
        return replace(fixed, eos_token_id=[], forced_eos_token_id=None, min_length=0)


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The languages of a multilingual translator."""

    codes: Mapping[str, int]  # code of each language -> its token
    source: str  # what it translates from; every source holds its token
    target: str | None = None
    starts: bool = False  # decoders start with the target's token; else it is forced to be first

    def token(self, option: str, code: str) -> int:
        """The token of the language that an option names; UsageError if the model has no such."""
        if code not in self.codes:
            known = sorted(self.codes)
            raise UsageError(
                f"{option} {code}: the model has no such language{did_you_mean(code, known)}; it "
                f"has {', '.join(known[:12])}{', …' if len(known) > 12 else ''}",
                id="language-unknown",
            )
        return self.codes[code]


@dataclass(frozen=True, kw_only=True)
class TranslationArtifact(Artifact):
    decoder_self_heads: list[int]
    cross_heads: list[int]
    head_dim: int
    vocab_size: int
    output_tokens: FileName | None = None  # those that the decoder scores; None: all
    generation: Generation
    source_prefix: str = ""  # what every source begins with
    languages: Languages | None = None
    # Codes of the languages of a translator that has no others, as its tokenizer names them.
    source_language: str | None = None
    target_language: str | None = None

    @property
    def direction(self) -> tuple[str | None, str | None]:
        if self.languages is not None:
            return self.languages.source, self.languages.target
        return self.source_language, self.target_language

    @property
    def scored(self) -> tuple[int, str | None]:
        return self.vocab_size, self.output_tokens


# By task. A task from outside this package adds its own class here.
ARTIFACTS: dict[str, type[Artifact]] = {
    "classification": ClassificationArtifact,
    "embedding": EmbeddingArtifact,
    "regression": RegressionArtifact,
    "reranking": RerankingArtifact,
    "multilabel": ClassificationArtifact,
    "translation": TranslationArtifact,
    "token-classification": ClassificationArtifact,
    "question-answering": EncoderArtifact,
    "summarization": TranslationArtifact,
}


def read_artifact(directory: Path) -> Artifact:
    """`onnx/graphs.json` of an artifact; InputError where it is missing or of another layout."""
    path = directory / GRAPH_DIRECTORY / GRAPHS_FILE
    try:
        values = dict(parse_json(read_text(path)))
        task = values.get("task")
        if task not in ARTIFACTS:
            raise ValueError(f"it does not name a task, one of {', '.join(ARTIFACTS)}")
        return _build(ARTIFACTS[task], values)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give the output directory of `compress run` "
            "or `compress export`",
            id="artifact-unreadable",
        ) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: Exception) -> InputError:
    """The error of a file that is damaged, or not of an artifact."""
    reason = " ".join(str(error).split())
    return InputError(
        f"{path} cannot be used ({reason:.300}); export the model again", id="artifact-invalid"
    )


def _build(cls: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass of the values of a JSON object; ValueError or TypeError for other ones."""
    types = get_type_hints(cls)
    # The constructor refuses what is unknown, so that no setting is ignored silently.
    return cls(**{name: _typed(types.get(name), x, name) for name, x in values.items()})


def _typed(kind: Any, value: Any, name: str) -> Any:
    """The value as a field of that type holds it; ValueError for one of another type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for one in inner:
            with suppress(ValueError):
                return _typed(one, value, name)
    elif origin is list and isinstance(value, list):
        return [_typed(inner[0], item, name) for item in value]
    elif origin is Mapping and isinstance(value, dict):
        return {key: _typed(inner[1], item, f"{name}.{key}") for key, item in value.items()}
    elif is_dataclass(kind) and isinstance(value, dict):
        return _build(kind, value)
    elif kind is FileName:
        return inner_path(value)
    elif kind is float and type(value) is int:
        return float(value)
    # Not `isinstance`: to that, `true` is an integer.
    elif kind is None or type(value) is kind or (origin is Literal and value in inner):
        return value
    raise ValueError(f"{name} is {value!r:.60}")


def read_description(directory: Path, verify: bool) -> Artifact:
    """`read_artifact`, checked against the manifest first if `verify`; no file is a link out."""
    description = f"{GRAPH_DIRECTORY}/{GRAPHS_FILE}"
    if verify:
        require_unchanged(directory, [description], warn=False)
    artifact = read_artifact(directory)
    names = {name for chosen in artifact.precisions for name in artifact.used_files(chosen)}
    # Weights lie beside their graph, in a file that `graphs.json` does not name.
    names |= {f"{name}_data" for name in names} | {description}
    names |= {f"{CTRANSLATE2_DIRECTORY}/{name}" for name in CTRANSLATE2_FILES}
    require_no_links_out(directory, sorted(names))
    return artifact


def require_files(directory: Path, files: Sequence[str], *, verify: bool = True) -> None:
    """Raise InputError for a file, or its weights, that is unreadable, or with `verify` changed."""
    for path in (directory / name for file in files for name in (file, f"{file}_data")):
        try:
            path.open("rb").close()  # engines say why they cannot, or end their process
        except FileNotFoundError:
            continue  # reported when it is opened; not every graph has external weights
        except OSError as error:
            raise cannot_read(path, error) from error
    if verify:
        require_unchanged(directory, files)


class OutputTokens:
    """The ids of tokens that a decoder scores, ascending; the search numbers them from 0 on."""

    def __init__(self, ids: Sequence[int] | Tokens) -> None:
        self.ids: Tokens = np.asarray(ids, dtype=np.int64)

    def indices(self, ids: Tokens) -> Tokens:
        """Indices of tokens, any shape; InputError for one that the decoder does not score."""
        missing = ids[~np.isin(ids, self.ids)]
        if missing.size:
            raise InputError(
                f"this decoder cannot produce token {missing[0]}; see its output tokens",
                id="token-not-in-output",
            )
        return np.searchsorted(self.ids, ids)

    def settings(self, settings: Generation) -> Generation:
        """Generation settings with ids -> the same settings with indices."""

        def one(token: int | None) -> int | None:
            return None if token is None else int(self.indices(np.array(token)))

        def some(tokens: Sequence[int]) -> list[int]:
            # Tokens that the decoder does not score cannot occur.
            ids = np.array(tokens, np.int64)
            indices: list[int] = self.indices(ids[np.isin(ids, self.ids)]).tolist()
            return indices

        forced = settings.forced_eos_token_id
        return replace(
            settings,
            decoder_start_token_id=int(self.indices(np.array(settings.decoder_start_token_id))),
            eos_token_id=some(settings.eos_token_id),
            forced_bos_token_id=one(settings.forced_bos_token_id),
            forced_eos_token_id=some(forced) if isinstance(forced, list) else one(forced),
            suppress_tokens=some(settings.suppress_tokens),
        )

    def rows(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Rows of indices -> rows of ids."""
        return [self.ids[list(row)].tolist() for row in rows]


def count_output_tokens(directory: Path) -> int | None:
    """How many tokens the decoder of the artifact in `directory` scores; None for an encoder."""
    artifact = read_artifact(directory)
    return None if artifact.scored is None else len(open_output_tokens(directory, artifact).ids)


def open_output_tokens(directory: Path, artifact: Artifact) -> OutputTokens:
    """The tokens that the decoder of the artifact in `directory` scores."""
    assert artifact.scored is not None  # it has a decoder
    vocabulary, file = artifact.scored
    if file is None:
        return OutputTokens(np.arange(vocabulary))
    path = directory / GRAPH_DIRECTORY / file
    try:
        return OutputTokens(read_json(path))
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise unusable(path, error) from error
