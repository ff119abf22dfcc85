"""The file layout that the ONNX Runtime loaders of Hugging Face optimum open.

Names of files, inputs and outputs are those of optimum-onnx 0.1: `optimum/onnxruntime/constants.py`
(files) and `modeling_seq2seq.py` (`ORTDecoderForSeq2Seq.forward`: which caches it passes where).
Caches are passed by name from a decoder's outputs to its inputs, so each layer may have its own
number of heads; but each layer must have caches, since they are matched layer by layer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.export.task_graphs import Network
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint
from compressor.model.pruning_record import without_code
from compressor.model.saving import save_settings
from compressor.results import Check
from compressor.storage.files import write_json
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from compressor.tasks import Batch


def export_optimum(
    checkpoint: Checkpoint, batches: Sequence[Batch], directory: Path
) -> list[Check]:
    """Write `directory` in optimum's layout: the graphs, which are verified, then the other files.

    Args:
        batches: ragged batches to compare on, as the checkpoint's task makes them.

    Raises:
        InputError: the layout does not support the model.
        VerificationError: an output differs from PyTorch's.
    """
    model, graphs = checkpoint.model, TASKS[checkpoint.task].graphs
    # With all tokens, since the loaders use one numbering.
    graphs.write_optimum(Network(checkpoint, model, checkpoint.mask), directory)
    inputs = [batch.inputs() for batch in batches]
    checks: list[Check] = graphs.verify_optimum(model, directory, inputs)
    # Written last, since no loader opens a directory without config.json.
    config: Any = copy.deepcopy(model.config)
    without_code(config)  # the graphs need none
    save_settings(checkpoint, model, directory, config)
    use_earlier_names(directory / "tokenizer_config.json")
    TokenizerProbe.of(checkpoint, ()).check_saved(directory)
    return checks


def use_earlier_names(path: Path) -> None:
    """Give `tokenizer_config.json` the names of transformers 4, which optimum needs.

    transformers 5 renamed the generic tokenizer class, and the list of additional special tokens;
    it still reads the earlier names.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    write_json(path, config)
