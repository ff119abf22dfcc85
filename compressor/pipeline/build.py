"""What a run does to one model: build it, verify it, and evaluate it on the test rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compressor.budgets.counts import Budget
from compressor.errors import VerificationError
from compressor.export import export_model, graph_bytes
from compressor.export.precision_names import BASE
from compressor.export.precisions import compare_precision, write_precision
from compressor.export.vocabulary import output_tokens
from compressor.model.checkpoint import (
    Checkpoint,
    count_parameters,
    open_checkpoint,
    round_to,
    save_checkpoint,
)
from compressor.model.memory import release, trim_memory
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune, verify_surgery
from compressor.recovery import Recovered
from compressor.results import Check, QualitySearch, SpeedSearch, Variant
from compressor.runtime.vocabulary import count_output_tokens
from compressor.tasks import Batch, Example, Rows

CHECKED_BATCHES = 4
CHECKED_ROWS = 8  # per batch
# What tokenizers disagree about most easily: case, accents, digits, spaces, symbols.
SAMPLE_TEXTS = (
    "The kettle is still warm.",
    "At 7:45, 3.5 litres cost 12 euros - or do they?",
    "  Two  spaces, a\ttab and a naïve café.  ",
    "ÄÖÜ äöü ß “quoted” … 漢字 🙂",
    "",
)


@dataclass(frozen=True)
class Choice:
    """The heads to keep, and what led to them.

    Args:
        model: what the heads are cut from: the checkpoint's model, or one of its shape whose
            weights were trained or repaired on the way.
        text: how the heads were found, in words, where scores alone do not tell.
        search: what was measured on the way, for budgets that are measured.
    """

    mask: Mask
    scores: Scores
    model: torch.nn.Module
    text: str = ""
    search: SpeedSearch | QualitySearch | None = None


@dataclass(frozen=True)
class Probe:
    """Ragged batches and texts on which every build is compared with what it must equal."""

    batches: Sequence[Batch]
    texts: Sequence[str]


def make_probe(rows: Rows, examples: Sequence[Any], model: torch.nn.Module, task: Any) -> Probe:
    """A few batches over the whole range of lengths, short and long rows side by side."""
    count = min(len(examples), CHECKED_BATCHES * CHECKED_ROWS)
    by_length = sorted(range(len(examples)), key=lambda i: (len(examples[i].source), i))
    chosen = [by_length[i * len(examples) // count] for i in range(count)]
    ragged = [chosen[i::CHECKED_BATCHES] for i in range(min(CHECKED_BATCHES, count))]
    batches = [
        batch
        for members in ragged
        for batch in task.batches(
            [examples[i] for i in members], model, batch_tokens=None, batch_size=CHECKED_ROWS
        )
    ]
    return Probe(batches, rows.sources)


def synthetic_probe(checkpoint: Checkpoint, task: Any) -> Probe:
    """A probe made of random tokens, for steps that are given no rows."""
    rng = random.Random(0)
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    special = set(tokenizer.all_special_ids)
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    ids = [i for i in range(len(tokenizer)) if i not in special]

    def sentence(length: int) -> tuple[int, ...]:
        return (*rng.choices(ids, k=length), end)

    translation = checkpoint.entry.task == "translation"
    examples = [
        Example(row, sentence(2 + row % 9), sentence(2 + row % 7) if translation else (0,))
        for row in range(CHECKED_ROWS * 2)
    ]
    batches = task.batches(examples, model, batch_tokens=None, batch_size=CHECKED_ROWS)
    return Probe(batches, SAMPLE_TEXTS)


def build_dense(checkpoint: Checkpoint, probe: Probe, directory: Path) -> dict[str, Any]:
    """Export the dense model, to be compared with, and describe it."""
    full = Mask.full(checkpoint.layers)
    checks = export_model(
        checkpoint, checkpoint.model, full, probe.batches, probe.texts, directory,
        output_tokens(checkpoint),
    )  # fmt: skip
    stored = sum(path.stat().st_size for path in checkpoint.directory.glob("*.safetensors"))
    stored = stored or sum(p.stat().st_size for p in checkpoint.directory.glob("*.bin"))
    return _describe("dense", checkpoint.model, full, "all heads", directory, stored, checks)


def build_variant(
    checkpoint: Checkpoint,
    choice: Choice,
    budget: Budget,
    seed: int,
    probe: Probe,
    name: str,
    directory: Path,
    repair: Callable[[torch.nn.Module], Recovered],
    tokens: list[int] | None,
) -> dict[str, Any]:
    """Remove heads, repair, save, export; checked: pruned = masked, reloaded = saved, ONNX = torch.

    Args:
        repair: gives the repaired model for the pruned one, and what it did, in words.
        tokens: what a translator's decoder shall score; None: all.
    """
    layers, mask = checkpoint.layers, choice.mask
    model = prune(choice.model, layers, mask)
    inputs = [batch.inputs() for batch in probe.batches]
    checks = [verify_surgery(choice.model, model, layers, mask, inputs)]
    recovered = repair(model)
    model, recovery = recovered.model, recovered.text or "none"
    trim_memory()
    round_to(model, checkpoint.dtype)
    heads = heads_facts(checkpoint, mask, choice.scores, budget, seed)
    heads |= {"selection": choice.text, "recovery": recovery}
    save_checkpoint(checkpoint, model, heads, directory)
    checks.append(_verify_reload(model, directory))
    checks += export_model(checkpoint, model, mask, probe.batches, probe.texts, directory, tokens)
    stored = (directory / "model.safetensors").stat().st_size
    described = _describe(
        name, model, mask, budget.text, directory, stored, checks, choice.text, recovery
    )
    release(model)
    return described


def build_precision(
    checkpoint: Checkpoint, base: Variant, precision: str, probe: Probe, device: str
) -> dict[str, Any]:
    """Write one more precision of an exported model and compare it with the float32 network.

    Args:
        base: the model in float32: the dense one, or one whose directory is a checkpoint.
        device: where to compare: the one that is measured on, if it has kernels for the precision.
    """
    directory = Path(base.directory)
    write_precision(directory, precision)  # before another model is opened: it takes memory
    dense = base.name == "dense"
    model = checkpoint.model if dense else open_checkpoint(base.directory).model
    inputs = [batch.inputs() for batch in probe.batches]
    checks = compare_precision(model.eval(), inputs, directory, precision, device)
    made = {
        "name": f"{base.name}-{precision}",
        "precision": precision,
        "base": base.name,
        "default": False,  # until it is measured
        "onnx_bytes": graph_bytes(directory, precision),
        "checks": checks,
    }
    return base.model_copy(update=made).model_dump()


def heads_facts(
    checkpoint: Checkpoint, mask: Mask, scores: Scores, budget: Budget, seed: int
) -> dict[str, Any]:
    """The contents of `heads.json`: which heads are left, and why these."""
    return {
        "schema": 1,
        "model": checkpoint.name,
        "revision": checkpoint.revision,
        "method": scores.method,
        "signature": scores.signature,
        "budget": budget.text,
        "seed": seed,
        "heads": {layer.name: layer.units for layer in checkpoint.layers},
        "kept": mask.to_json(),
        "scores": {layer: list(values) for layer, values in scores.values.items()},
    }


def _verify_reload(model: torch.nn.Module, directory: Path) -> Check:
    saved, loaded = model.state_dict(), open_checkpoint(str(directory)).model.state_dict()
    if set(saved) != set(loaded) or not all(torch.equal(saved[k], loaded[k]) for k in saved):
        raise VerificationError(
            f"the checkpoint in {directory} does not load back as it was saved; please report this"
        )
    detail = f"{len(saved)} tensors, bit for bit"
    return Check(name="reloaded equals saved", largest_difference=0.0, tolerance=0.0, detail=detail)


def _describe(
    name: str,
    model: torch.nn.Module,
    mask: Mask,
    budget: str,
    directory: Path,
    checkpoint_bytes: int,
    checks: list[Check],
    selection: str = "",
    recovery: str = "none",
) -> dict[str, Any]:
    return Variant(
        name=name,
        directory=directory.as_posix(),
        budget=budget,
        kept=mask.to_json(),
        heads={layer: len(flags) for layer, flags in mask.keep.items()},
        parameters=count_parameters(model),
        checkpoint_bytes=checkpoint_bytes,
        onnx_bytes=graph_bytes(directory),
        output_tokens=count_output_tokens(directory),
        precision=BASE,
        selection=selection,
        recovery=recovery,
        checks=checks,
    ).model_dump()
