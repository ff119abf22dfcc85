"""The description of an artifact, `onnx/graphs.json`: a dataclass for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType

from compressor.errors import UsageError
from compressor.runtime.generation import Generation, Languages
from compressor.runtime.graph_names import CANDIDATE_DECODER

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


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The entries of `graphs.json` that every artifact has; tasks have further ones.

    Args:
        schema: number of the layout of the file.
        task: the name that the class in `ARTIFACTS` and the runtime have.
        precisions: name of a precision -> role of a graph (`model`, `encoder`, `decoder`, …) -> its
            file.
        default_precision: the one to run where none is named.
        tokenizer: the file with the tokenizer, a `tokenizer.json`.
        max_source_tokens: length of the longest input, in tokens, special ones included.
        truncation_side: the end of long texts at which tokens are left out.
        pad_token_id: fills rows of a batch up.
        inputs: of the graphs that read texts.
        token_types: how many the graphs tell apart; None: any, which they do not read.
        labels: names of the classes, in the order of the logits; None for tasks without.
        fastest_engines: precision -> the engine that was the fastest in it on the CPU; None where
            only one was measured.
        made_for: precision -> the device that its graphs are made for, where they run on no other.
    """

    schema: Literal[1]
    task: str
    precisions: Mapping[str, Mapping[str, FileName]]
    default_precision: str
    tokenizer: FileName
    max_source_tokens: int
    truncation_side: Literal["right", "left"] = "right"
    pad_token_id: int
    inputs: list[Literal["input_ids", "attention_mask", "token_type_ids"]]
    token_types: int | None = None
    labels: list[str] | None = None
    fastest_engines: Mapping[str, str] | None = None
    made_for: Mapping[str, Literal["cuda"]] | None = None

    def only_device(self, precision: str) -> str | None:
        """The device that the graphs of a precision are made for; None: they run on all."""
        return (self.made_for or {}).get(precision)

    def used_files(self, precision: str) -> list[str]:
        """Files that are opened for one precision.

        Args:
            precision: its name. For one that the artifact lacks it is the tokenizer, and what the
                decoder scores.

        Returns:
            Paths from the artifact's directory.
        """
        names = [self.tokenizer, *self.precisions.get(precision, {}).values()]
        _, tokens = self.scored or (0, None)
        beside = tokens, self.candidate_table(precision)
        return [f"{GRAPH_DIRECTORY}/{name}" for name in (*names, *beside) if name is not None]

    @property
    def scored(self) -> tuple[int, str | None] | None:
        """Size of a decoder's vocabulary, and the file with the tokens it scores (None: all)."""
        return None

    def candidate_table(self, precision: str) -> str | None:
        """The file with a decoder's candidates in a precision; None: it scores all tokens."""
        return None

    @property
    def direction(self) -> tuple[str | None, str | None]:
        """Codes of the languages that it translates from and into; None for unknown ones."""
        return None, None

    def file(self, role: str, precision: str | None) -> str:
        """Name of the graph with a role.

        Args:
            role: `model` of encoders, `encoder`, `decoder` and others of encoder-decoders.
            precision: None for the default one.

        Raises:
            UsageError: the artifact was not exported in that precision.
        """
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
    """An encoder with a head: one graph, `model`.

    Args:
        reads_one_token: whether the last layer computes only the token that the head reads.
    """

    reads_one_token: bool = False

    @property
    def outputs(self) -> int:
        """How many logits a row has, or a token."""
        return 1


@dataclass(frozen=True, kw_only=True)
class ClassificationArtifact(EncoderArtifact):
    """A classifier of texts, with one label of each or with any number."""

    labels: list[str]

    @property
    def outputs(self) -> int:
        """One logit for each label."""
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class TaggingArtifact(ClassificationArtifact):
    """A classifier of tokens.

    Args:
        unk_token_id: the unknown token; None: the tokenizer has none.
    """

    unk_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class RegressionArtifact(EncoderArtifact):
    """A model that gives a text or a pair a number.

    Args:
        activation: how the number is made of the logit.
    """

    activation: Activation = "identity"


@dataclass(frozen=True, kw_only=True)
class RerankingArtifact(EncoderArtifact):
    """A model that says how relevant a text is to a query.

    Args:
        classes: 1 logit, or 2, of which the second is that of "relevant".
        activation: how the score is made of the logit of "relevant".
    """

    classes: Literal[1, 2]
    activation: Activation = "identity"

    @property
    def outputs(self) -> int:
        """One logit for each class."""
        return self.classes


@dataclass(frozen=True, kw_only=True)
class EmbeddingArtifact(EncoderArtifact):
    """An encoder of texts.

    Args:
        width: how many numbers an embedding has.
        similarity: how embeddings are compared.
        prompts: name -> what a text begins with.
        default_prompt: the text of the prompt that is used where none is named.
    """

    width: int
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""

    @property
    def outputs(self) -> int:
        """One number for each dimension of the embedding."""
        return self.width


@dataclass(frozen=True, kw_only=True)
class TranslationArtifact(Artifact):
    """An encoder-decoder: the graphs `encoder` and `decoder`, and those that move the caches.

    Args:
        decoder_self_heads: heads that are left in each decoder layer's self-attention.
        cross_heads: heads that are left in its cross-attention.
        head_dim: of all heads.
        vocab_size: how many token ids there are.
        output_tokens: the file with those that the decoder scores; None: all.
        candidates: the file with those to score by source tokens (`runtime.candidates`); None: the
            decoder scores all of these.
        generation: how to decode.
        source_prefix: what every source begins with, as text.
        languages: of a multilingual translator; None for others.
    """

    decoder_self_heads: list[int]
    cross_heads: list[int]
    head_dim: int
    vocab_size: int
    output_tokens: FileName | None = None
    candidates: FileName | None = None
    generation: Generation
    source_prefix: str = ""
    languages: Languages | None = None
    # Codes of the languages of a translator that has no others, as its tokenizer names them.
    source_language: str | None = None
    target_language: str | None = None

    @property
    def direction(self) -> tuple[str | None, str | None]:
        """Codes of the languages that it translates from and into; None for unknown ones."""
        if self.languages is not None:
            return self.languages.source, self.languages.target
        return self.source_language, self.target_language

    @property
    def scored(self) -> tuple[int, str | None]:
        """Size of the vocabulary, and the file with what the decoder scores of it (None: all)."""
        return self.vocab_size, self.output_tokens

    def candidate_table(self, precision: str) -> str | None:
        """The file with candidates, for precisions whose graphs can score these alone."""
        return self.candidates if CANDIDATE_DECODER in self.precisions.get(precision, ()) else None


# By task. A task from outside this package adds its own class here.
ARTIFACTS: dict[str, type[Artifact]] = {
    "classification": ClassificationArtifact,
    "embedding": EmbeddingArtifact,
    "regression": RegressionArtifact,
    "reranking": RerankingArtifact,
    "multilabel": ClassificationArtifact,
    "translation": TranslationArtifact,
    "token-classification": TaggingArtifact,
    "question-answering": EncoderArtifact,
    "summarization": TranslationArtifact,
}
