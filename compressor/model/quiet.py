"""Calling transformers without its messages."""

from __future__ import annotations

import warnings
from typing import Any

from transformers.utils import logging as hub_logging


class quiet_transformers(warnings.catch_warnings):
    """Silence the messages of transformers; what matters is checked and raised here."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self.verbosity = hub_logging.get_verbosity()
        hub_logging.set_verbosity_error()
        hub_logging.disable_progress_bar()

    def __exit__(self, *error: Any) -> None:
        hub_logging.set_verbosity(self.verbosity)
        super().__exit__(*error)
