"""Float16 graphs in the form for CUDA, and their checks.

The fused form is always checked in float32, for which a CPU has kernels, too. The float16 graphs
themselves are compared on the device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto

from compressor.export.graphs import WEIGHTS_SUFFIX
from compressor.export.packed import pack
from compressor.export.precision_names import BASE
from compressor.export.verify import Expected, logit_check, relative_difference
from compressor.results import Check
from compressor.runtime.artifact import GRAPH_DIRECTORY, read_artifact
from compressor.runtime.fused_encoder import LEAST_PADDING, LEAST_SHARE, PACKED
from compressor.storage.files import link_or_copy, write_json
from compressor.storage.manifest import GRAPHS_FILE
from compressor.storage.staging import staging
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from compressor.runtime import Runtime

CUDA = "cuda"


@dataclass(frozen=True)
class CudaForm:
    """The form of a graph for CUDA in float16.

    Args:
        rewrite: returns the form of a float32 graph, whose external data is in the directory, or
            None without one; the graph does not change.
        write_beside: writes additional graphs next to the written one, with a suffix of their
            names; returns role -> file name.
    """

    rewrite: Callable[[ModelProto, Path], ModelProto | None]
    write_beside: Callable[[Path, str], Mapping[str, str]] = lambda graph, suffix: {}


def write_packed(graph: Path, suffix: str) -> Mapping[str, str]:
    """Write the padding-free form of a fused graph, if it has one; both share a file of weights."""
    packed = pack(onnx.load(graph, load_external_data=False))
    if packed is None:
        return {}
    onnx.save(packed, graph.with_name(f"{PACKED}{suffix}"))
    return {PACKED: f"{PACKED}{suffix}"}


@contextmanager
def fused_in_float32(directory: Path) -> Iterator[Path]:
    """Within the context, an artifact whose float32 graphs have the form for CUDA."""
    artifact = read_artifact(directory)
    files = dict(artifact.precisions[BASE])
    with staging(directory) as staged:
        made = link_float32(directory, staged)
        for role, form in TASKS[artifact.task].graphs.cuda_forms.items():
            source = directory / GRAPH_DIRECTORY / files[role]
            fused = form.rewrite(onnx.load(source, load_external_data=False), source.parent)
            if fused is not None:  # for at least one of the graphs
                (made / files[role]).unlink()
                onnx.save(fused, made / files[role])
                files |= form.write_beside(made / files[role], ".onnx")
        described = json.loads((made / GRAPHS_FILE).read_text(encoding="utf-8"))
        write_json(made / GRAPHS_FILE, described | {"precisions": {BASE: files}})
        yield staged


def link_float32(directory: Path, target: Path) -> Path:
    """Link the float32 graphs of an artifact, and their files, into `target`.

    Returns:
        Their directory, with a `graphs.json` without other precisions.
    """
    made = target / GRAPH_DIRECTORY
    made.mkdir(parents=True)
    artifact = read_artifact(directory)
    for used in artifact.used_files(BASE):
        for path in (directory / used, directory / f"{used}{WEIGHTS_SUFFIX}"):
            if path.exists():
                link_or_copy(path, made / path.name)
    text = (directory / GRAPH_DIRECTORY / GRAPHS_FILE).read_text(encoding="utf-8")
    alone = {"precisions": {BASE: artifact.precisions[BASE]}, "default_precision": BASE}
    write_json(made / GRAPHS_FILE, json.loads(text) | alone | {"made_for": None})
    return made


def form_check(expected: Sequence[Expected], directory: Path) -> Check:
    """Compare the form for CUDA of an artifact's graphs with PyTorch, in float32 on the CPU.

    Raises:
        VerificationError: an output differs.
    """
    task = TASKS[read_artifact(directory).task]
    with fused_in_float32(directory) as artifact:
        compared = task.graphs.compare(expected, task.open(artifact, precision=BASE))
    check = logit_check(compared.differences, compared.provider)
    detail = f"{check.detail}; the nodes of the float16 graphs in float32"
    return check.model_copy(update={"name": "form for CUDA equals PyTorch", "detail": detail})


def packed_check(
    expected: Sequence[Expected], runtime: Runtime[Any], tolerance: float
) -> list[Check]:
    """Compare outputs on CUDA for a batch that is large enough for the padding-free form.

    Returns:
        Empty without such a form, or if rows cannot be padded enough.
    """
    artifact = runtime.artifact
    if PACKED not in artifact.precisions[runtime.precision]:
        return []
    inputs, wanted = _one_batch(expected, artifact.pad_token_id, artifact.max_source_tokens)
    real = inputs["attention_mask"].astype(bool)
    padding = int((~real).sum())
    if padding < LEAST_SHARE * real.size:
        return []
    times = -(-LEAST_PADDING // padding)
    actual: Any = runtime.compute({n: np.tile(value, (times, 1)) for n, value in inputs.items()})
    if actual.ndim == 3:  # logits of tokens: leave out those of padding
        rows = zip(actual, np.tile(real, (times, 1)), strict=True)
        actual = [logits[row] for logits, row in rows]
    check = Check(
        name=f"{runtime.precision} without padding against PyTorch in float32",
        largest_difference=relative_difference(actual, wanted * times),
        tolerance=tolerance,
        detail=f"logits of {len(actual)} rows in one batch, relative to the largest logit; "
        f"{runtime.provider}",
    )
    return [check]


def _one_batch(
    expected: Sequence[Expected], pad_id: int, most_tokens: int
) -> tuple[dict[str, NDArray[np.int64]], list[NDArray[Any]]]:
    """All rows in one batch with a third of padding, if the model's limit allows; and their logits,
    [outputs] of each row, or [its tokens, outputs]."""
    masks = [mask for batch in expected for mask in batch.inputs["attention_mask"]]
    lengths = [int(mask.sum()) for mask in masks]
    width = max(max(lengths), min(most_tokens, -(-3 * sum(lengths) // (2 * len(lengths)))))
    inputs = {}
    for name in expected[0].inputs:
        rows = (row for batch in expected for row in batch.inputs[name])
        inputs[name] = np.full((len(masks), width), pad_id if name == "input_ids" else 0, np.int64)
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            inputs[name][number, :length] = row[:length]
    wanted = [logits for batch in expected for logits in batch.logits.read()]
    if wanted[0].ndim == 2:
        wanted = [logits[:n] for logits, n in zip(wanted, lengths, strict=True)]
    return inputs, wanted
