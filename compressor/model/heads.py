"""Classes of transformers that open checkpoints: what the models of each need beside it.

To add one, add a line to `ENCODER_HEADS`; where its models need more than transformers gives them,
with a subclass of `Head`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.model.cross_encoder import is_cross_encoder

if TYPE_CHECKING:
    from torch import nn

    from compressor.model.sentence_settings import SentenceSettings

_ANY = "AutoModel"
# Ending of a class of transformers that no task here is for -> what its models do.
_OTHER_HEADS = {
    "ForMultipleChoice": "chooses one of several texts",
    "LMHeadModel": "continues texts",
    "ForCausalLM": "continues texts",
    "EncoderModel": "is an encoder–decoder without its decoder",
}


@dataclass(frozen=True)
class Head:
    """A class of transformers.

    Args:
        auto_class: its name.
        task: what its models are usually for.
    """

    auto_class: str
    task: str

    @property
    def ending(self) -> str:
        """The end of its models' class names; empty for an encoder without a head."""
        return self.auto_class.removeprefix(_ANY)

    def usual_task(self, config: Any) -> str:
        """The task of a model with this configuration, where the user names none."""
        return self.task

    def complete(
        self,
        model: nn.Module,
        directory: Path,
        settings: SentenceSettings | None,
        allow_pickle: bool,
    ) -> None:
        """Add to a loaded model what transformers leaves out, in place.

        Args:
            directory: of the checkpoint.
            settings: of sentence-transformers, where the checkpoint has some.
        """

    def save(self, model: nn.Module, tokens: int, source: Path, directory: Path) -> None:
        """Write what `complete` added to a model made from `source`, which reads so many tokens."""


class _Classifier(Head):
    """Of texts, or of pairs of texts."""

    def usual_task(self, config: Any) -> str:
        if config.problem_type == "multi_label_classification":
            return "multilabel"
        if config.num_labels != 1:
            return self.task
        return "reranking" if is_cross_encoder(config) else "regression"


class _Reader(Head):
    """Answers questions by a part of a text."""

    def complete(self, model: nn.Module, *args: Any, **options: Any) -> None:
        from compressor.model.span_logits import add_logits

        add_logits(model)


class _Encoder(Head):
    """No head in transformers; the one of sentence-transformers makes embeddings."""

    def complete(
        self,
        model: nn.Module,
        directory: Path,
        settings: SentenceSettings | None,
        allow_pickle: bool,
    ) -> None:
        from compressor.model.sentence_files import read_head
        from compressor.model.sentence_head import add_head

        config: Any = model.config
        add_head(model, read_head(directory, int(config.hidden_size), settings, allow_pickle))

    def save(self, model: nn.Module, tokens: int, source: Path, directory: Path) -> None:
        from compressor.model.sentence_files import write_layout

        write_layout(model, tokens, source, directory)


CLASSIFIER = _Classifier("AutoModelForSequenceClassification", "classification")
ENCODER = _Encoder(_ANY, "embedding")
TRANSLATOR = Head("AutoModelForSeq2SeqLM", "translation")
# Of encoders, by the class.
ENCODER_HEADS: dict[str, Head] = {
    head.auto_class: head
    for head in (
        CLASSIFIER,
        Head("AutoModelForTokenClassification", "token-classification"),
        _Reader("AutoModelForQuestionAnswering", "question-answering"),
        ENCODER,
    )
}


def head_in(name: str) -> Head | None:
    """The head of a class such as `BertForTokenClassification`; None without one of a task here."""
    heads = ENCODER_HEADS.values()
    return next((x for x in heads if x.ending and name.endswith(x.ending)), None)


def require_class(values: Mapping[str, Any], generates: bool, path: Path) -> None:
    """Raise InputError if `architectures` in a configuration names a class that no task is for.

    Args:
        generates: whether models of the architecture have a decoder.
    """
    names = values.get("architectures")
    name = str(names[0])[:100] if isinstance(names, list) and names else ""
    heads = dict(_OTHER_HEADS)
    advice = "give one for classification, tokens, questions or embeddings"
    if generates:
        heads |= {x.ending: f"is for {x.task}" for x in ENCODER_HEADS.values() if x.ending}
        advice = (
            "of encoder–decoders give one that generates texts (…ForConditionalGeneration), for "
            "other tasks an encoder such as bert"
        )
    does = next((does for ending, does in heads.items() if name.endswith(ending)), None)
    if does is not None:
        raise InputError(
            f"{path} names the class {name}, which {does}, and that is not supported; {advice}",
            id="architecture-variant-unsupported",
        )
