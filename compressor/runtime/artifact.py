"""`onnx/graphs.json`: the description of an artifact's graphs, validated when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from compressor.errors import InputError, UsageError
from compressor.runtime.fields import NOT_EMPTY, Count, FileName, Size, TokenId, parse
from compressor.runtime.generation import Generation, Languages
from compressor.storage.input_files import parse_json, read_text
from compressor.storage.manifest import GRAPHS_FILE

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


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What `graphs.json` says of every artifact; each task has its own further entries.

    `opened_with` is the name of the class that runs it.
    """

    opened_with: ClassVar[str]

    schema: Literal[1]
    task: str
    precisions: Annotated[Mapping[str, Mapping[str, FileName]], NOT_EMPTY]
    default_precision: str
    tokenizer: FileName
    max_source_tokens: Size
    # Where tokens of longer texts are left out.
    truncation_side: Literal["right", "left"] = "right"
    pad_token_id: TokenId
    inputs: list[Literal["input_ids", "attention_mask", "token_type_ids"]]
    # Of classes, in the order of the logits. Only classifiers have some; declared here, so that
    # artifacts of any task can be compared.
    labels: list[str] | None = None
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


@dataclass(frozen=True, kw_only=True)
class EncoderArtifact(Artifact):
    """An encoder with a head: one graph, `model`."""

    @property
    def outputs(self) -> int:
        """How many logits a row has, or a token."""
        return 1


@dataclass(frozen=True, kw_only=True)
class ClassificationArtifact(EncoderArtifact):
    opened_with = "Classifier"

    labels: Annotated[list[str], NOT_EMPTY]

    @property
    def outputs(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class TokenClassificationArtifact(ClassificationArtifact):
    opened_with = "TokenClassifier"


@dataclass(frozen=True, kw_only=True)
class MultiLabelArtifact(ClassificationArtifact):
    opened_with = "MultiLabelClassifier"


@dataclass(frozen=True, kw_only=True)
class RegressionArtifact(EncoderArtifact):
    """A model with one number for each text or pair."""

    opened_with = "Regressor"

    activation: Activation = "identity"


@dataclass(frozen=True, kw_only=True)
class RerankingArtifact(EncoderArtifact):
    """A model of how relevant a text is to a query: one logit, or those of two classes."""

    opened_with = "Reranker"

    classes: Literal[1, 2]
    activation: Activation = "identity"

    @property
    def outputs(self) -> int:
        return self.classes


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringArtifact(EncoderArtifact):
    """A model for questions; each token has logits of starting and of ending the answer."""

    opened_with = "QuestionAnswerer"

    @property
    def outputs(self) -> int:
        return 2


@dataclass(frozen=True, kw_only=True)
class EmbeddingArtifact(EncoderArtifact):
    """An encoder of texts; its logits are embeddings.

    Args:
        similarity: how they are compared; Euclidean and Manhattan distances with a minus.
        prompts: name -> what a text begins with if that prompt is asked for.
        default_prompt: what it begins with otherwise.
    """

    opened_with = "Embedder"

    width: Size
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""

    @property
    def outputs(self) -> int:
        return self.width


@dataclass(frozen=True, kw_only=True)
class TranslationArtifact(Artifact):
    """A translator: the graphs `encoder` and `decoder`, and how to decode."""

    opened_with = "Translator"

    decoder_self_heads: list[Count]
    cross_heads: list[Count]
    head_dim: Size
    # A table of so many numbers is made, so a damaged file must not name any number.
    vocab_size: Annotated[int, range(1, (1 << 26) + 1)]
    # The file with the tokens that the decoder scores; None: all.
    output_tokens: FileName | None = None
    generation: Generation
    # What every source begins with.
    source_prefix: str = ""
    languages: Languages | None = None

    @property
    def scored(self) -> tuple[int, str | None]:
        return self.vocab_size, self.output_tokens


@dataclass(frozen=True, kw_only=True)
class SummarizationArtifact(TranslationArtifact):
    opened_with = "Generator"


# By task. A task from outside this package adds its own class here.
ARTIFACTS: dict[str, type[Artifact]] = {
    "classification": ClassificationArtifact,
    "embedding": EmbeddingArtifact,
    "regression": RegressionArtifact,
    "reranking": RerankingArtifact,
    "multilabel": MultiLabelArtifact,
    "translation": TranslationArtifact,
    "token-classification": TokenClassificationArtifact,
    "question-answering": QuestionAnsweringArtifact,
    "summarization": SummarizationArtifact,
}


def read_artifact(directory: Path) -> Artifact:
    """Read `onnx/graphs.json` of the artifact in `directory`.

    Raises:
        InputError: no such file, not JSON, or not the layout of an artifact.
    """
    path = directory / GRAPH_DIRECTORY / GRAPHS_FILE
    try:
        contents = read_text(path)
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
        values = parse_json(contents)
        # First, since the task says which entries there must be.
        task = values.get("task") if isinstance(values, dict) else None
        if not isinstance(task, str) or task not in ARTIFACTS:
            raise ValueError(f"the file: it does not name a task, one of {', '.join(ARTIFACTS)}")
        return parse(ARTIFACTS[task], values, task)
    except ValueError as error:
        raise InputError(
            f"{path} does not describe an artifact: {error}; export the model again",
            id="artifact-invalid",
        ) from error
