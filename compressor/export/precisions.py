"""Other precisions of exported graphs: written beside the float32 ones, compared with PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from compressor.errors import VerificationError
from compressor.export.candidate_graphs import write_candidate_graphs
from compressor.export.device_step import share_caches
from compressor.export.for_cuda import CUDA, form_check, packed_check
from compressor.export.fp16 import to_fp16
from compressor.export.graphs import INLINE_BYTES, WEIGHTS_SUFFIX
from compressor.export.int8 import activation_ranges, to_int8
from compressor.export.verify import Expected
from compressor.model.memory import trim_memory
from compressor.model.token_selection import undecided_text
from compressor.runtime.artifact import CPU_ONLY, GRAPH_DIRECTORY
from compressor.runtime.graph_names import CANDIDATE_DECODER, CANDIDATE_ROLES, RANK
from compressor.runtime.opening import read_artifact
from compressor.steps.results import HALF_RANGE, Check
from compressor.storage.files import write_json
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.names import BASE
from compressor.tasks import TASKS, Example

# Share of the largest logit. Rounding to 11 bits changes logits by about 1e-3, to 8 bits by a few
# hundredths, more in deep models; a wrong graph by tenths and more.
TOLERANCES = {"fp16": 0.02, "int8": 0.15}
# Correct int8 graphs may exceed it. On real rows this share of labels, or greedy tokens, may then
# differ from PyTorch's; on random tokens, whose predictions mean nothing, logits by so much.
OTHER_ANSWERS = 0.1
RANDOM_TOKENS = 0.5
LARGEST_HALF = 65_504.0
# Largest value as a share of float16's range: other inputs than those of a few batches give more.
_MOST_OF_RANGE = 0.5
_MASK_VALUE = 1e30  # larger ones are of masks, about -3e38 in transformers


def add_precision(
    model: nn.Module,
    batches: Sequence[Mapping[str, Tensor]],
    directory: Path,
    precision: str,
    device: str = "cpu",
    examples: Sequence[Example] = (),
) -> list[Check]:
    """Write the graphs of an artifact in one more precision and compare them with PyTorch.

    A check that exceeds its tolerance is returned without an error: test rows decide.

    Args:
        model: the float32 network that the artifact's graphs were exported from.
        batches: ragged batches of model inputs; of real rows if `examples` are given, or else of
            random tokens.
        directory: an artifact with float32 graphs.
        precision: `fp16` or `int8`.
        device: where the graphs are run to be compared.
        examples: rows that the ranges of int8 activations are taken from.

    Raises:
        InputError: a weight does not fit into the precision.
        VerificationError: graphs that are rewritten for a device give other outputs.
    """
    write_precision(directory, precision, examples, device=device)
    expected = expect_answers(model, batches, directory, precision)
    return compare_precision(expected, directory, precision, device, bool(examples))


def write_precision(
    directory: Path,
    precision: str,
    examples: Sequence[Example],
    target: Path | None = None,
    device: str = "cpu",
) -> None:
    """Write the graphs in a precision, and their names to `graphs.json`.

    Args:
        directory: an artifact with float32 graphs.
        precision: `fp16` or `int8`.
        examples: rows that the ranges of int8 activations are taken from.
        target: another directory to write to, whose files are then moved to `directory`.
        device: float16 graphs for `cuda` run there alone.

    Raises:
        InputError: a weight does not fit into the precision.
    """
    graphs = directory / GRAPH_DIRECTORY
    written = (target or directory) / GRAPH_DIRECTORY
    written.mkdir(exist_ok=True)
    data = json.loads((graphs / GRAPHS_FILE).read_text(encoding="utf-8"))
    ranges = activation_ranges(directory, examples) if precision == "int8" and examples else {}
    forms = TASKS[data["task"]].graphs.cuda_forms if (precision, device) == ("fp16", CUDA) else {}
    made_for = {x: y for x, y in (data.pop("made_for", None) or {}).items() if x != precision}
    files: dict[str, str] = {}
    base = data["precisions"][BASE]
    for role, file in base.items():
        if role in CANDIDATE_ROLES:  # made from the decoder's graph in the precision
            continue
        files[role] = f"{role}.{precision}.onnx"
        graph, form = written / files[role], forms.get(role)
        model = onnx.load(graphs / file, load_external_data=False)
        fused = None if form is None else form.rewrite(model, graphs)
        if precision == "fp16":
            # Logits are float32 in every precision.
            half = model if role == RANK else to_fp16(fused or model, graphs)
            _save(half, graphs, graph, precision)
        else:
            _save(to_int8(model, graphs, ranges.get(file)), graphs, graph, precision)
        if form is not None and fused is not None:
            made_for[precision] = CUDA
            files |= form.write_beside(graph, f".{precision}.onnx")
        trim_memory()
    if CANDIDATE_DECODER in base and precision in CPU_ONLY:
        files |= write_candidate_graphs(written / files["decoder"], f".{precision}.onnx")
    data["precisions"][precision] = files
    write_json(written / GRAPHS_FILE, data | ({"made_for": made_for} if made_for else {}))


def _save(converted: onnx.ModelProto, source: Path, target: Path, precision: str) -> None:
    """Write a graph with its weights; those not converted are in files of `source`."""
    if precision in CPU_ONLY:
        share_caches(converted)  # with an operator that other devices do not have in float32
    load_external_data_for_model(converted, str(source))
    onnx.save_model(
        converted,
        target,
        save_as_external_data=True,
        location=target.name + WEIGHTS_SUFFIX,
        size_threshold=INLINE_BYTES,
    )
    # By its path: a large graph with its weights exceeds the size of a protobuf message.
    onnx.checker.check_model(target)


class LargestValue(TorchDispatchMode):
    """Inside this context, the largest value that an operation returns; masks do not count."""

    largest: float = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" not in func.__name__:  # its memory is not initialized
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                    sizes = value.detach().abs()
                    largest = float(sizes.where(sizes < _MASK_VALUE, 0).max())
                    self.largest = max(self.largest, largest)
        return result


def expect_answers(
    model: nn.Module, batches: Sequence[Mapping[str, Tensor]], directory: Path, precision: str
) -> tuple[Sequence[Expected], float | None]:
    """Compute the model's outputs, and its largest value for float16: GPUs alone overflow."""
    graphs = TASKS[read_artifact(directory).task].graphs
    if precision != "fp16":
        return graphs.expect(model, directory, batches), None
    with LargestValue() as largest:
        expected = graphs.expect(model, directory, batches)
    return expected, largest.largest


def compare_precision(
    network_outputs: tuple[Sequence[Expected], float | None],
    directory: Path,
    precision: str,
    device: str,
    real: bool,
) -> list[Check]:
    """Compare graphs with the model.

    Args:
        network_outputs: from `expect_answers`.
        directory: of the artifact.
        precision: of the graphs.
        device: where they run.
        real: whether the batches are of real rows, so that their predictions mean something.

    Raises:
        VerificationError: graphs that are rewritten for a device give other outputs.
    """
    trim_memory()
    expected, largest = network_outputs
    task = TASKS[read_artifact(directory).task]
    runtime = task.open(directory, precision=precision, device=device)
    compared = task.graphs.compare(expected, runtime)
    is_meaningful = real or largest is not None
    agreement = (
        f"{np.mean(compared.same):.1%} of {len(compared.same)} {compared.answers} are PyTorch's"
    )
    note = "" if is_meaningful else "; on random tokens, so what it means for quality is not known"
    logits = Check(
        name=f"{precision} against PyTorch in float32",
        largest_difference=float(np.max(compared.differences)),  # NaN if any is
        tolerance=TOLERANCES[precision] if is_meaningful else RANDOM_TOKENS,
        detail=f"logits of {len(compared.differences)} ragged batches, relative to the largest "
        f"logit; {agreement}; {runtime.ran_by}{note}{undecided_text(compared.undecided)}",
    )
    if largest is not None:
        if runtime.artifact.only_device(precision) is None:
            return [logits, range_check(largest)]
        checks = [logits, *packed_check(expected, runtime, TOLERANCES[precision])]
        if not all(check.is_met for check in checks):  # these graphs are others, not only rounded
            require_within([range_check(largest), *checks], precision)
        return [*checks, range_check(largest), form_check(expected, directory)]
    if not real or not logits.largest_difference > logits.tolerance:
        return [logits]
    answers = Check(
        name=f"{precision} answers against PyTorch's in float32",
        largest_difference=1 - float(np.mean(compared.same)),
        tolerance=OTHER_ANSWERS,
        detail=f"answers to real rows: {agreement}; logits differ by at most "
        f"{logits.largest_difference:.2g} of the largest; {runtime.ran_by}",
    )
    return [answers]


def range_check(largest: float) -> Check:
    """The check that the largest intermediate value leaves room within float16's range."""
    return Check(
        name=HALF_RANGE,
        largest_difference=largest / LARGEST_HALF,
        tolerance=_MOST_OF_RANGE,
        detail=f"the largest intermediate value is {largest:.3g}; the limit of float16 is "
        f"{LARGEST_HALF:,.0f}, and other inputs may give twice as much",
    )


def require_within(checks: Sequence[Check], precision: str) -> None:
    """Raise `VerificationError` if a check of a precision exceeds its tolerance."""
    for check in checks:
        if check.is_met:
            continue
        if check.name == HALF_RANGE:
            raise VerificationError(
                f"{check.detail}; leave {precision} out of --precision", id="values-beyond-fp16"
            )
        raise VerificationError(
            f"{check.name}: {check.largest_difference:.2e}, and the tolerance is "
            f"{check.tolerance:.1e} ({check.detail}); this model loses too much in {precision}, "
            "leave it out of --precision",
            id="precision-differs",
        )


def set_default(directory: Path, precision: str, engines: Mapping[str, str], target: Path) -> None:
    """Write `graphs.json` with another default precision, and each one's fastest engine.

    Args:
        directory: of the artifact.
        precision: that the runtime opens where none is named.
        engines: precision -> the engine that `engine="auto"` stands for; none of those that were
            not compared.
        target: another directory to write to.
    """
    data = json.loads((directory / GRAPH_DIRECTORY / GRAPHS_FILE).read_text(encoding="utf-8"))
    recorded = {"fastest_engines": dict(engines)} if engines else {}
    written = target / GRAPH_DIRECTORY
    written.mkdir(exist_ok=True)
    write_json(written / GRAPHS_FILE, data | {"default_precision": precision} | recorded)
