"""`onnx/graphs.json`: the description of an artifact's graphs, validated when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from compressor.errors import InputError, UsageError
from compressor.input_files import read_text

GRAPH_DIRECTORY = "onnx"
GRAPHS_FILE = "graphs.json"

MOST_BEAMS = 1024
CPU_ONLY = ("int8",)  # onnxruntime has no CUDA kernels for products of unsigned bytes

_MOST = 1 << 31  # ids, lengths and counts are 32-bit numbers in tokenizers

TokenId = Annotated[int, Field(ge=0, lt=_MOST)]
Count = Annotated[int, Field(ge=0, lt=_MOST)]
Size = Annotated[int, Field(ge=1, lt=_MOST)]


def _plain(name: str) -> str:
    """The name of a file in the same directory."""
    if name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise ValueError(f"{name!r} must be the name of a file beside {GRAPHS_FILE}")
    return name


FileName = Annotated[str, AfterValidator(_plain)]


class _Model(BaseModel):
    """Base: unknown keys are errors, so that a setting the runtime ignores cannot pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Generation(_Model):
    """How to decode; names and meanings are those of transformers' `GenerationConfig`.

    Lengths include the start token, except `max_new_tokens`, which takes precedence over
    `max_length`, and `positions`: the most tokens that the decoder can generate (None: not known).
    """

    decoder_start_token_id: TokenId
    eos_token_id: list[TokenId]
    max_length: Annotated[int, Field(ge=2, lt=_MOST)] | None = None
    max_new_tokens: Size | None = None
    positions: Size | None = None
    min_length: Count = 0
    num_beams: Annotated[int, Field(ge=1, le=MOST_BEAMS)] = 1
    length_penalty: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    early_stopping: bool | Literal["never"] = False
    forced_bos_token_id: TokenId | None = None
    forced_eos_token_id: TokenId | list[TokenId] | None = None
    suppress_tokens: list[TokenId] = []
    no_repeat_ngram_size: Count = 0
    renormalize_logits: bool = False

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.max_length is None and self.max_new_tokens is None:
            raise ValueError("either max_length or max_new_tokens must be set")
        return self

    @property
    def limit(self) -> int:
        """The most tokens to generate, the start token not counted."""
        limit = self.max_new_tokens
        if limit is None:
            assert self.max_length is not None  # checked on reading
            limit = self.max_length - 1
        return limit if self.positions is None else min(limit, self.positions)

    def with_options(self, num_beams: int | None, max_new_tokens: int | None) -> Generation:
        """A copy with what is not None replaced.

        Raises:
            UsageError: a number below 1, or more tokens than the decoder has positions for.
        """
        given = {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        for name, value in given.items():
            if value is not None and value < 1:
                raise UsageError(
                    f"{name} is {value}, but must be at least 1", id="number-below-one"
                )
        if max_new_tokens is not None and max_new_tokens > (self.positions or max_new_tokens):
            raise UsageError(
                f"{max_new_tokens} tokens are more than the {self.positions} that the model can "
                "generate; ask for fewer",
                id="length-beyond-positions",
            )
        return self.model_copy(update={k: v for k, v in given.items() if v is not None})

    def with_length(self, tokens: int) -> Generation:
        """A greedy copy that generates exactly `tokens` tokens, whatever they are.

        Raises:
            UsageError: as `with_options`.
        """
        fixed = self.with_options(1, tokens)
        return fixed.model_copy(
            update={"eos_token_id": [], "forced_eos_token_id": None, "min_length": 0}
        )


class _Artifact(_Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    precisions: Annotated[dict[str, dict[str, FileName]], Field(min_length=1)]
    default_precision: str
    tokenizer: FileName
    max_source_tokens: Size
    pad_token_id: TokenId
    inputs: list[Literal["input_ids", "attention_mask", "token_type_ids"]]

    @model_validator(mode="after")
    def _has_its_default(self) -> Self:
        if self.default_precision not in self.precisions:
            raise ValueError(f"default_precision {self.default_precision!r} is not in precisions")
        return self

    def precision(self, name: str | None, device: str) -> str:
        """The precision to run on `device`; None stands for the default one.

        Raises:
            UsageError: one that the device has no kernels for.
        """
        chosen = name or self.default_precision
        if device == "cuda" and chosen in CPU_ONLY:
            raise UsageError(
                f"{chosen} graphs are for the CPU; use device 'cpu', or another precision of "
                f"this artifact, which has {', '.join(sorted(self.precisions))}",
                id="precision-not-on-device",
            )
        return chosen

    def used_files(self, precision: str) -> list[str]:
        """Files that are opened for one precision, as paths from the artifact's directory."""
        names = [self.tokenizer, *self.precisions.get(precision, {}).values(), *self._own_files()]
        return [f"{GRAPH_DIRECTORY}/{name}" for name in names]

    def _own_files(self) -> list[str]:
        """Further files of the task."""
        return []

    def file(self, role: str, precision: str | None) -> str:
        """Name of the graph with that role, in one precision (None: the default one).

        Raises:
            UsageError: the artifact was not exported with that precision.
            InputError: it has no graph with that role.
        """
        chosen = precision or self.default_precision
        if chosen not in self.precisions:
            raise UsageError(
                f"precision {chosen!r} is not in this artifact, which has "
                f"{', '.join(sorted(self.precisions))}; choose one of those, or export it",
                id="precision-not-in-artifact",
            )
        if role not in self.precisions[chosen]:
            raise InputError(
                f"{GRAPHS_FILE} names no {role!r} graph of precision {chosen}; export it again",
                id="graph-not-in-artifact",
            )
        return self.precisions[chosen][role]


class ClassificationArtifact(_Artifact):
    """A classifier: one graph, `model`."""

    task: Literal["classification"]
    labels: Annotated[list[str], Field(min_length=1)]


class TranslationArtifact(_Artifact):
    """A translator: the graphs `encoder` and `decoder`, and how to decode."""

    task: Literal["translation"]
    labels: None = None
    decoder_self_heads: list[Count]
    cross_heads: list[Count]
    head_dim: Size
    vocab_size: Annotated[int, Field(ge=1, le=1 << 26)]
    output_tokens: FileName | None = None  # file with the tokens the decoder scores; None: all
    generation: Generation

    def _own_files(self) -> list[str]:
        return [] if self.output_tokens is None else [self.output_tokens]

    @model_validator(mode="after")
    def _tokens_are_in_the_vocabulary(self) -> Self:
        given = self.generation
        forced = given.forced_eos_token_id
        ids = [
            self.pad_token_id, given.decoder_start_token_id, given.forced_bos_token_id,
            *given.eos_token_id, *given.suppress_tokens,
            *(forced if isinstance(forced, list) else [forced]),
        ]  # fmt: skip
        beyond = [token for token in ids if token is not None and token >= self.vocab_size]
        if beyond:
            raise ValueError(f"token {beyond[0]} is beyond the vocabulary of {self.vocab_size}")
        return self


Artifact = ClassificationArtifact | TranslationArtifact
_ARTIFACT: TypeAdapter[Artifact] = TypeAdapter(Annotated[Artifact, Field(discriminator="task")])


def read_artifact(directory: Path) -> Artifact:
    """Read `onnx/graphs.json` of the artifact in `directory`.

    Raises:
        InputError: no such file, not JSON, or not the layout of an artifact.
    """
    path = directory / GRAPH_DIRECTORY / GRAPHS_FILE
    try:
        text = read_text(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give the output directory of `compress run` "
            "or `compress export`",
            id="artifact-unreadable",
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text ({error}); export the model again", id="artifact-not-utf8"
        ) from error
    try:
        return _ARTIFACT.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        reason = " ".join(f"{first['msg']}".split())
        raise InputError(
            f"{path} does not describe an artifact: {field}: {reason}; export the model again",
            id="artifact-invalid",
        ) from error
