"""Saving and exporting models, each checked against the model before, and their facts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

from compressor import parallel
from compressor.budgets import Choice
from compressor.errors import VerificationError
from compressor.export.engine_names import ONNXRUNTIME
from compressor.export.precision_names import BASE
from compressor.export.precisions import compare_precision, expect_answers, write_precision
from compressor.export.source_text import embedding_rows
from compressor.export.task_graphs import Network, export_model, graph_bytes
from compressor.export.tokenizer_check import TokenizerProbe
from compressor.model.checkpoint import Checkpoint, open_checkpoint, round_to, save_checkpoint
from compressor.model.location import weight_files
from compressor.model.memory import release, trim_memory
from compressor.model.sublayers import Mask, units_of
from compressor.model.surgery import prune, verify_surgery, without_skipped
from compressor.model.weights import count_parameters
from compressor.pipeline.inputs import ModelAndRows
from compressor.pipeline.recover import recover
from compressor.pipeline.setup import ArtifactPlan, RunSetup
from compressor.recovery import Recovered
from compressor.results import Check, Ranking, Variant
from compressor.runtime.engines import engine_class
from compressor.runtime.opening import count_output_tokens, read_artifact
from compressor.steps import Steps
from compressor.storage.files import written_at_once
from compressor.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn

DENSE = "dense"  # name of the model to compare with


def build(
    artifact: ArtifactPlan,
    choice: Choice,
    setup: RunSetup,
    *,
    making: AbstractContextManager[Path],
    steps: Steps,
) -> Variant:
    """Remove units, recover what is left, save and export; each is checked against the one before.

    `making` gives an empty directory, whose files go to the artifact's.
    """
    source, mask, scores, budget = setup.source, choice.mask, choice.scores, artifact.budget.text
    checkpoint, tokens = source.checkpoint, setup.tokens
    model = chosen_model(steps, artifact.name, choice, checkpoint)
    state = steps.scratch / "recovery.safetensors"
    with making as folder:
        pruned = prune(model, checkpoint.layers, mask)
        check = verify(model, pruned, source, mask)
        methods = setup.recipe.recovery
        recovered = recover(methods, source, pruned, mask, text=setup.text, state=state)
        small, reloaded = save(source, recovered, choice, folder, budget)
        exported = parallel.on_main(
            lambda: export(small, tokens, source, folder, delivered(setup.engines))
        )
        facts = {
            "name": artifact.name,
            "budget": budget,
            "macs_share": setup.costs.share(mask, None if tokens is None else len(tokens)),
            "selection": choice.text,
            "recovery": recovered.text or "none",
            "scoring": Ranking(
                method=scores.method,
                signature=scores.signature,
                cost=dict(scores.cost),
                values={n: list(v) for n, v in scores.values.items() if units_of(n) == "heads"},
            ),
            "checks": [check, reloaded, *exported],
        }
        built = parallel.on_main(
            lambda: describe(small.model, mask, folder, folder, artifact.directory, **facts)
        )
    release(small.model, keep=model)  # whose weights it shares where nothing was removed
    return built


def verify(model: nn.Module, pruned: nn.Module, source: ModelAndRows, mask: Mask) -> Check:
    """Compare a pruned model with the one that it was cut from, its units masked."""
    layers, cut = source.checkpoint.layers, without_skipped(source.checkpoint, pruned, mask).model
    on_tokens = source.task.head_on_tokens
    return parallel.on_main(
        lambda: verify_surgery(model, cut, layers, mask, source.inputs, on_tokens)
    )


def save(
    source: ModelAndRows, recovered: Recovered, choice: Choice, directory: Path, budget: str
) -> tuple[Checkpoint, Check]:
    """Save a pruned model, which loads again bit for bit; its checkpoint, and the check of that."""
    trim_memory()
    dense, mask, scores = source.checkpoint, choice.mask, choice.scores
    small = without_skipped(dense, recovered.model, mask)
    round_to(small.model, dense.dtype)  # so that checks are of what is stored
    record = {
        "schema": 2,
        "model": dense.published_name,
        "revision": dense.revision,
        "task": dense.task,
        "method": scores.method,
        "signature": scores.signature,
        "budget": budget,
        "seed": source.seed,
        "units": mask.totals(),
        "kept": mask.to_json(),
        **({"dropped_layers": sorted(mask.dropped)} if mask.dropped else {}),
        # Of thousands of neurons with six digits.
        "scores": {
            name: list(values) if units_of(name) == "heads" else [float(f"{x:.6g}") for x in values]
            for name, values in scores.values.items()
        },
        "selection": choice.text,
        "recovery": recovered.text or "none",
    }
    parallel.on_main(lambda: save_checkpoint(dense, small.model, record, directory))
    return small, parallel.on_main(lambda: verify_reload(small, directory, source))


def verify_reload(checkpoint: Checkpoint, directory: Path, source: ModelAndRows) -> Check:
    """Compare a model, bit for bit, and its tokenizer with the files that they were saved to."""
    import torch

    opened = open_checkpoint(str(directory), verify=False)
    TokenizerProbe.of(checkpoint, *source.texts).check_saved(directory, opened.tokenizer)
    loaded, saved = opened.model.state_dict(), checkpoint.model.state_dict()
    if set(saved) != set(loaded) or not all(torch.equal(saved[k], loaded[k]) for k in saved):
        raise VerificationError(
            f"the checkpoint in {directory} does not load back as it was saved; please report this",
            id="reloaded-differs",
        )
    detail = f"{len(saved)} tensors, bit for bit"
    return Check(name="reloaded equals saved", largest_difference=0.0, tolerance=0.0, detail=detail)


def keep_weights(steps: Steps, artifact: str, model: nn.Module) -> str:
    """Keep the weights that belong to an artifact's choice of units; their SHA-256."""
    path = _weights_of(steps, artifact)

    def write() -> str:
        # Tied weights share memory, which the file format refuses: every name gets a copy.
        tensors = {n: t.to("cpu", copy=True).contiguous() for n, t in model.state_dict().items()}
        with written_at_once(path) as staged:
            save_file(tensors, staged)
        return steps.wrote(path)

    return parallel.on_main(write)


def chosen_model(steps: Steps, artifact: str, choice: Choice, checkpoint: Checkpoint) -> nn.Module:
    """What an artifact's units are cut from: the dense model, or the weights of its choice."""
    if not choice.weights:
        return checkpoint.model
    model = copy.deepcopy(checkpoint.model)
    model.load_state_dict(load_file(_weights_of(steps, artifact)))
    return model


def _weights_of(steps: Steps, artifact: str) -> Path:
    return steps.state / f"weights-{artifact}.safetensors"


def export(
    checkpoint: Checkpoint,
    tokens: list[int] | None,
    source: ModelAndRows,
    directory: Path,
    engines: Sequence[str],
) -> list[Check]:
    """Write float32 graphs, and what engines need beside them, and compare them with PyTorch."""
    network = Network(checkpoint, checkpoint.model, checkpoint.mask, tokens)
    texts, pairs = source.texts
    return export_model(network, source.batches, texts, directory, engines, pairs)


def export_dense(*, source: ModelAndRows, engines: Sequence[str], steps: Steps) -> Variant:
    """Export the dense model, to be compared with, and describe it."""
    checkpoint, directory = source.checkpoint, steps.state / DENSE
    tokens = source.task.graphs.output_tokens(checkpoint)
    with steps.making(directory) as making:
        checks = export(checkpoint, tokens, source, making, engines)
    facts = {"name": DENSE, "budget": "all units", "macs_share": 1.0, "checks": checks}
    full = Mask.full(checkpoint.layers)
    return describe(checkpoint.model, full, directory, checkpoint.directory, directory, **facts)


def export_precision(
    model: Variant, precision: str, *, source: ModelAndRows, steps: Steps
) -> Variant:
    """Write one more precision of an exported model and compare it with the float32 network.

    It is compared on the device that is measured on, if that has kernels for the precision.
    """
    directory, checkpoint, device = Path(model.directory), source.checkpoint, source.device
    with steps.making(directory) as making:
        # Before another model is opened: it takes memory.
        examples = source.examples if source.calibrated else ()
        write_precision(directory, precision, examples, making, device)
    if model.name == DENSE:
        expected = expect_answers(checkpoint.model.eval(), source.inputs, directory, precision)
    else:
        opened = open_checkpoint(model.directory, verify=False)
        expected = expect_answers(opened.model, source.inputs, directory, precision)
        release(opened.model)
    return _another_build(
        model,
        name=f"{model.name}-{precision}",
        precision=precision,
        onnx_bytes=graph_bytes(directory, precision),
        checks=compare_precision(expected, directory, precision, device, real=True),
    )


def _another_build(model: Variant, **facts: Any) -> Variant:
    """A float32 model in another precision or engine; it is no default until it is measured."""
    other = {"base": model.name, "default": False, "scoring": None, "checks": []}
    return model.model_copy(update=other | facts)


def delivered(engines: Sequence[str]) -> list[str]:
    """Those of the engines that run pruned models."""
    return [name for name in engines if not engine_class(name).dense_only]


def engine_builds(model: Variant, engines: Sequence[str], device: str) -> list[Variant]:
    """An exported float32 model in the run's other engines, in all precisions to measure."""
    directory = Path(model.directory)
    artifact = read_artifact(directory)
    if model.name != DENSE:
        engines = delivered(engines)
    return [
        _another_build(
            model,
            name="-".join([model.name, engine, *([precision] * (precision != BASE))]),
            precision=precision,
            engine=engine,
        )
        for engine in engines
        if engine != ONNXRUNTIME
        for precision in TASKS[artifact.task].engine(engine).measured(directory, artifact, device)
    ]


def describe(
    model: nn.Module, mask: Mask, graphs: Path, checkpoint: Path, directory: Path, **facts: Any
) -> Variant:
    """The facts of an exported float32 model that will lie in `directory`.

    Its graphs and its weights now lie in `graphs` and `checkpoint`.
    """
    heads = {name: n for name, n in mask.totals().items() if units_of(name) == "heads"}
    tokens = count_output_tokens(graphs)
    rows, stored = (None, None) if tokens else embedding_rows(model)
    weights = weight_files(checkpoint, allow_pickle=True)  # that were loaded already
    return Variant(
        directory=directory.as_posix(), kept={name: mask.kept(name) for name in heads}, heads=heads,
        neurons={name: n for name, n in mask.totals().items() if name not in heads},
        kept_neurons={name: n for name, n in mask.counts().items() if name not in heads},
        dropped_layers=[layer for layer in mask.layers() if layer in mask.dropped],
        parameters=count_parameters(model),
        checkpoint_bytes=sum(path.stat().st_size for path in weights),
        onnx_bytes=graph_bytes(graphs), output_tokens=tokens, embedding_rows=rows,
        embedding_bytes=stored, precision=BASE, **({"recovery": "none"} | facts),
    )  # fmt: skip
