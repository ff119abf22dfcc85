"""Cross-encoders of sentence-transformers: how to recognize one, and what turns logits into scores.

Before version 5.4 only `config.json` had that. What newer versions keep elsewhere is put there,
too, so that it stays with the model.
"""

from __future__ import annotations

from typing import Any

from compressor.errors import InputError
from compressor.model.sentence_settings import CROSS_ENCODER, SentenceSettings, shown

_SETTINGS, _PATH = "sentence_transformers", "activation_fn"  # since version 4
_EARLIEST = "sbert_ce_default_activation_function"
IDENTITY, SIGMOID = "identity", "sigmoid"
_NAMES = {
    "torch.nn.modules.linear.Identity": IDENTITY,
    "torch.nn.Identity": IDENTITY,
    "torch.nn.modules.activation.Sigmoid": SIGMOID,
    "torch.nn.Sigmoid": SIGMOID,
}


def is_cross_encoder(config: Any) -> bool:
    """Whether a model's configuration says that it is a cross-encoder."""
    return isinstance(getattr(config, _SETTINGS, None), dict) or hasattr(config, _EARLIEST)


def activation_of(config: Any) -> str:
    """`IDENTITY` or `SIGMOID`, which turns a model's one logit into its score.

    Raises InputError for a cross-encoder with another activation.
    """
    if not is_cross_encoder(config) or config.num_labels != 1:
        return IDENTITY
    # As in `CrossEncoder.get_default_activation_fn`.
    settings = getattr(config, _SETTINGS, None) or {}
    path = settings[_PATH] if _PATH in settings else getattr(config, _EARLIEST, None)
    if path is None:
        return SIGMOID
    if path not in _NAMES:
        raise InputError(
            f"the cross-encoder's activation function is {shown(path)}; supported are "
            f"{', '.join(_NAMES)}: write one of these as {_PATH} in its settings",
            id="activation-unsupported",
        )
    return _NAMES[path]


def note_settings(config: Any, settings: SentenceSettings | None) -> None:
    """Copy what other files say about a cross-encoder into its configuration, in place."""
    if settings is not None and settings.kind == CROSS_ENCODER:
        noted = dict(getattr(config, _SETTINGS, None) or {})
        if settings.activation is not None:
            noted[_PATH] = settings.activation
        setattr(config, _SETTINGS, noted)
