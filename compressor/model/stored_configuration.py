"""Values of a `config.json` that transformers 5 changes while it loads them: followed, or refused.

Found by loading every setting of every architecture with other values in transformers 4 and 5. What
has another form there and means the same (`_OTHER_FORMS`, and settings that are gone) is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from compressor.errors import InputError
from compressor.model.architecture import Architecture
from compressor.model.modeling_pruned import STORED_VALUES
from compressor.storage.input_files import shown

_TIES = "tie_word_embeddings"
_OTHER_FORMS = {
    *("dtype", "torch_dtype", "id2label", "label2id", "num_labels", "_num_labels", "return_dict"),
    *("pos_att_type", "rope_parameters", "rope_scaling", "layer_types", "transformers_version"),
    *("output_attentions", "attn_implementation", "name_or_path", "_name_or_path"),
}
# BART's name for its layers. transformers 4 reads no other; 5 takes `num_hidden_layers` beside it,
# which smaller copies of a model often have from the large one.
_OWN_NAMES = ("encoder_layers",)


def follow_stored(config: Any, values: Mapping[str, Any], entry: Architecture, path: Path) -> None:
    """Have a configuration say what its file says, in place.

    What must be changed while weights are loaded is noted in `stored_values`, which
    `set_stored_values` sets behind that.

    Args:
        config: as transformers has made it of the file.
        values: those in the file.
        entry: of the architecture.
        path: of the file.

    Raises:
        InputError: a value that the model would be computed without.
    """
    vars(config).pop(STORED_VALUES, None)
    for name in _OWN_NAMES:
        if name in values and hasattr(config, name):
            setattr(config, name, values[name])
    for name, stored in values.items():
        loaded = getattr(config, name, stored)  # settings that are gone are not read any more
        other = config.attribute_map.get(name)  # the architecture's own name for it
        if stored is None or loaded == stored or name in _OTHER_FORMS or other in values:
            continue
        if name != _TIES or not entry.untied_weights:
            raise _refused(path, name, stored, f"transformers loads {shown(loaded, 40)} instead")
        setattr(config, STORED_VALUES, {name: stored})
    _require_scale(config, values, entry, path)


def _require_scale(config: Any, values: Mapping[str, Any], entry: Architecture, path: Path) -> None:
    """Check that logits of T5 and its relatives are scaled as their file says."""
    if not entry.untied_weights or _TIES not in values:
        return
    ties, scale = values[_TIES], entry.decoder.output_scale if entry.decoder else None
    reason = None
    if ties is None:
        reason = "it is true or false: whether logits are scaled"
    elif ties and scale is None and not _of_version_5(values.get("transformers_version")):
        reason = "transformers 4 then scales the logits, and 5 never does"
    elif not ties and scale not in (None, _TIES) and getattr(config, scale):
        reason = f"the logits are then not scaled, and {scale} is true"
    if reason is not None:
        raise _refused(path, _TIES, ties, reason)


def _of_version_5(version: object) -> bool:
    major = str(version).partition(".")[0]
    return major.isdecimal() and int(major) >= 5


def untied_weights(config: Any, entry: Architecture) -> frozenset[str]:
    """Names of weights that may differ from those that the configuration ties them to."""
    scale = entry.decoder.output_scale if entry.decoder else None
    scales = scale is not None and getattr(config, scale) and not needs_own_class(config, entry)
    # transformers 5 writes that weights are tied whether they are or not; 4 ties them then.
    tied = scales and not _of_version_5(config.transformers_version)
    return frozenset() if tied else entry.untied_weights


def says_untied(config: Any) -> bool:
    """Whether the file says that the output layer has weights of its own, which it must store."""
    return getattr(config, STORED_VALUES, {}).get(_TIES) is False


def needs_own_class(config: Any, entry: Architecture) -> bool:
    """Whether the model's class in transformers would compute otherwise than its file says."""
    scale = entry.decoder.output_scale if entry.decoder else None
    return scale in getattr(config, STORED_VALUES, {})


def configuration_difference(config: Any, entry: Architecture) -> str:
    """Say what transformers alone would compute otherwise; empty for nothing."""
    if not needs_own_class(config, entry):
        return ""
    return (
        f"its logits are not scaled, as {_TIES} false in config.json means, which transformers "
        f"{transformers.__version__} takes for true"
    )


def _refused(path: Path, name: str, value: Any, why: str) -> InputError:
    return InputError(
        f"{path} sets {name} to {shown(value, 40)}, which is not followed ({why}); change it to "
        "what the model was trained with, or remove the setting that contradicts it",
        id="setting-unsupported",
    )
