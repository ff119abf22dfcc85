"""Classification of texts, or pairs of texts, into one of several classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compressor.errors import InputError
from compressor.tasks.encoder import LabelTask, known_labels
from compressor.tasks.rows import LabelNames, Rows, Texts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compressor.model.checkpoint import Checkpoint
    from compressor.runtime import Classifier
    from compressor.tasks.batching import Tensors


class Classification(LabelTask):
    """Classification of texts, or pairs of texts, into one of several classes."""

    name = "classification"
    metrics = ("accuracy", "macro_f1", "mcc")
    runtime = "compressor.runtime:Classifier"
    usage = 'print(model.classify(["First text.", "Second one."]))'
    answers = "labels"
    text_learning_rate = 2e-4

    def require(self, checkpoint: Checkpoint) -> None:
        config: Any = checkpoint.model.config
        if config.num_labels < 2:
            kind, advice = "a number", "use --task regression or --task reranking"
        elif config.problem_type == "multi_label_classification":
            kind, advice = "several labels", "use --task multilabel"
        elif config.problem_type == "regression":
            kind, advice = "several numbers", "give a model with one"
        else:
            return
        raise InputError(
            f"{checkpoint.directory} answers with {kind} per text (problem_type "
            f"{config.problem_type}, {config.num_labels} labels), and classification is into one "
            f"of several labels; {advice}",
            id="classifier-unsupported",
        )

    def label_values(self, rows: Rows) -> list[int]:
        """Class ids, by the order of the labels that the rows were read with."""
        ids = {name: index for index, name in enumerate(known_labels(rows))}
        return [ids[target] for target in rows.targets]

    def blank_answer(self, labels: LabelNames) -> str:
        return (labels or [""])[0]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        """Cross-entropy of the right classes in nats, summed over the rows of the batch."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(self.logits(model, batch).float(), batch["labels"], reduction="sum")

    def answers_of(self, logits: Tensor, batch: Tensors, model: nn.Module) -> list[str]:
        """Names of the most probable classes."""
        names = self.label_names(model.config)
        return [names[label] for label in logits.argmax(-1).tolist()]

    def answer(
        self, runtime: Classifier, sources: Texts, pairs: Texts | None = None, **_: Any
    ) -> list[str]:
        return runtime.classify(sources, pairs)


TASK = Classification()
