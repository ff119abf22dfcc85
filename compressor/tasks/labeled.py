"""What tasks share whose models name labels of texts, or of their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compressor.errors import InputError
from compressor.tasks.classification.labels import Labels
from compressor.tasks.encoder import EncoderTask
from compressor.tasks.rows import LabelNames, Rows


class LabelTask(EncoderTask):
    """Labels by the names that the checkpoint has for them."""

    def label_names(self, config: Any) -> list[str]:
        return [str(config.id2label[index]) for index in range(config.num_labels)]

    def label_reader(self, labels: LabelNames) -> Callable[[str, str], str]:
        """Names of labels; cells as they stand where no labels are known."""
        return (lambda cell, _: cell) if labels is None else Labels(labels).name_of


def known_labels(rows: Rows, what: str = "labels") -> list[str]:
    """The label names that rows were read with, in the order of their ids.

    Args:
        what: the rows' targets in messages.

    Raises:
        InputError: they were read without.
    """
    if rows.labels is None:
        raise InputError(
            f"the {what} of {', '.join(rows.files)} were read without the checkpoint's label names",
            id="label-names-missing",
        )
    return rows.labels
