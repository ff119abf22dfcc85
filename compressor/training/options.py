"""Options that learned masks and distillation share; nothing here imports torch."""

from __future__ import annotations

from typing import Any

from compressor.options.declare import option

PATIENCE: Any = option(2, help="Training stops after so many epochs without gain.")


def rate_option(needs: str | None = None) -> Any:
    """The option; None is the task's, see `Task.learning_rate`.

    Args:
        needs: as for `option`.
    """
    return option(
        None,
        gt=0,
        allow_inf_nan=False,
        needs=needs,
        help="Of weights that are trained. Default: 0.0001 for translators, 0.00005 for "
        "classifiers.",
    )
