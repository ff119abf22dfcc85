"""Roles of heads: positional, syntactic and rare-word heads, and which of them pruning keeps.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the
Rest Can Be Pruned", section 5. `patterns` counts, `role_criteria` tells the roles, `role_report`
shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Sublayer
from compressor.study.conllu import read_conllu
from compressor.study.job import Job, make_batches, scoring
from compressor.study.options import RolesStudy
from compressor.study.output import Result
from compressor.study.patterns import Arcs, arcs_of, count_arcs, count_positions, rarity
from compressor.study.role_criteria import (
    COMMON,
    DIRECTIONS,
    MINIMUM_ARCS,
    POSITIONAL,
    RARE,
    SYNTACTIC,
    Dependency,
    HeadRoles,
    dependencies,
    head_roles,
    relation_counts,
    survival,
)
from compressor.study.role_report import role_result
from compressor.study.word_alignment import Tokens, tokenize
from compressor.tasks import Batch


@dataclass(frozen=True)
class Material:
    """The text on which attention is counted.

    Args:
        batches: for positions and rare tokens.
        kinds: of the self-attention that `batches` exercise.
        parsed: for dependencies; their rows are indices of `sentences`.
        left_out: number of sentences that could not be aligned with tokens.
    """

    batches: Sequence[Batch]
    kinds: tuple[str, ...]
    parsed: Sequence[Batch]
    sentences: Sequence[Tokens]
    left_out: int


def study(job: Job[RolesStudy]) -> Result:
    """Find the roles of all self-attention heads, before and after pruning."""
    request, model = job.request, job.checkpoint
    # First, so that a wrong directory is refused before anything is counted.
    pruned = _open_pruned(job)
    material = _material(job)
    before = count_roles(job, "dense", model.model, model.attention, material)
    counts = relation_counts(material.sentences)
    data: dict[str, Any] = {
        **job.facts(),
        "conllu": request.conllu,
        "sentences": len(material.sentences),
        "left_out": material.left_out,
        "from_word": request.from_word,
        "thresholds": {
            "positional": POSITIONAL, "syntactic": SYNTACTIC, "rare-word": RARE, "common": COMMON,
            "arcs": MINIMUM_ARCS,
        },
        "too_rare": {name: count for name, count in counts.items() if count < MINIMUM_ARCS},
        "positions": before.positions,
        "relations": [asdict(one) for one in before.dependencies],
        "heads_roles": before.roles,
    }  # fmt: skip
    if pruned is not None:
        kept = {name: pruned.mask.kept(name) for name in before.roles}
        # With the heads that are left; a layer without any attends to nothing.
        layers = [
            replace(layer, units=len(kept[layer.name]))
            for layer in model.attention
            if kept.get(layer.name)
        ]
        data["pruned"] = {
            "directory": request.pruned,
            "kept": kept,
            "heads_roles": count_roles(job, "pruned", pruned.model, layers, material).roles,
            "survival": survival(before.roles, kept),
        }
    return role_result(job, data, before)


def _open_pruned(job: Job[RolesStudy]) -> Checkpoint | None:
    directory = job.request.pruned
    if directory is None:
        return None
    pruned = open_checkpoint(directory, task=job.checkpoint.task)
    if pruned.pruning is None:
        raise InputError(
            f"--pruned {directory} has lost no heads; give what `compress run` wrote",
            id="checkpoint-not-pruned",
        )
    # Also of a cut checkpoint these are the layers as the dense model has them.
    if pruned.attention != job.checkpoint.attention:
        raise InputError(
            f"--pruned {directory} was not made from {job.checkpoint.name}: it has other attention "
            "layers",
            id="checkpoints-differ",
        )
    return pruned


def _material(job: Job[RolesStudy]) -> Material:
    """The calibration rows and the parsed sentences, as far as they are given.

    Parsed sentences have no translations, so that without rows only the encoder is studied.
    """
    checkpoint, conllu = job.checkpoint, job.request.conllu
    calibration = job.rows.get("calibration")
    if calibration is None and conllu is None:
        raise UsageError(
            "`compress study roles` needs --calibration FILE, --conllu FILE or both",
            id="rows-missing",
        )
    sentences: list[Tokens] = []
    parsed: list[Batch] = []
    left_out = 0
    if conllu is not None:
        sentences, left_out = tokenize(
            checkpoint.tokenizer, read_conllu(conllu), checkpoint.max_source_tokens
        )
        if not sentences:
            raise InputError(
                f"none of the {left_out} sentences of {conllu} can be aligned with the "
                "model's tokens; they are too long, or the tokenizer normalizes their characters",
                id="conllu-not-aligned",
            )
        parsed = source_batches(job, sentences)
    if left_out:
        job.progress.message(
            f"{left_out} sentences of {conllu} are left out: too long, or normalized by the "
            "tokenizer"
        )
    if calibration is None:
        return Material(parsed, ("encoder_self",), parsed, sentences, left_out)
    batches = make_batches(job, checkpoint, calibration)
    return Material(batches, ("encoder_self", "decoder_self"), parsed, sentences, left_out)


def source_batches(job: Job[RolesStudy], sentences: Sequence[Tokens]) -> list[Batch]:
    """Batches of sentences without targets, for the encoder alone."""
    tokenizer = job.checkpoint.tokenizer
    examples = [
        job.task.source_example(row, tokens.ids, tokenizer.eos_token_id)
        for row, tokens in enumerate(sentences)
    ]
    batches: list[Batch] = job.task.batches(examples, job.checkpoint.model)
    return batches


def special_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """All special tokens other than the unknown word, and the decoder's start token."""
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    # An unknown word is a word all the same.
    ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    generation = getattr(model, "generation_config", None)
    ids |= {getattr(generation, "decoder_start_token_id", None)}
    return frozenset(int(token) for token in ids if token is not None)


def count_roles(
    job: Job[RolesStudy],
    name: str,
    model: nn.Module,
    layers: Sequence[Sublayer],
    material: Material,
) -> HeadRoles:
    """Count to what the heads of a model attend, and derive their roles.

    Args:
        name: of the model, in stages and messages.
        layers: with the head counts that the model has.
    """
    counted = [layer for layer in layers if layer.kind in material.kinds]
    positions = job.workspace.stage(
        f"positions-{name}",
        f"{name}: to which tokens {sum(layer.units for layer in counted)} heads attend",
        lambda: _positions(job, model, counted, material),
        dict[str, dict[str, Any]],
    )
    # Parsed sentences have no translations, which a decoder would have to read.
    encoder = [layer for layer in layers if layer.kind == "encoder_self"]
    followed: list[Dependency] = []
    if material.sentences and encoder:
        followed = job.workspace.stage(
            f"relations-{name}",
            f"{name}: dependencies in {len(material.sentences)} sentences",
            lambda: _dependencies(job, model, encoder, material),
            list[Dependency],
        )
    return HeadRoles(positions, followed, head_roles(positions, followed))


def _positions(
    job: Job[RolesStudy], model: nn.Module, layers: Sequence[Sublayer], material: Material
) -> dict[str, dict[str, Any]]:
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr,arg-type]
    special = special_ids(job.checkpoint)
    with scoring(job, model, layers, material.batches, "batches") as subject:
        rare = rarity(material.batches, vocabulary, COMMON, special)
        return count_positions(subject, rare, special)


def _dependencies(
    job: Job[RolesStudy], model: nn.Module, layers: Sequence[Sublayer], material: Material
) -> list[Dependency]:
    sentences = material.sentences
    names = [name for name, count in relation_counts(sentences).items() if count >= MINIMUM_ARCS]
    if not names:
        return []
    # Two groups per relation, one for each direction.
    rows = arcs_of(sentences, {name: 2 * number for number, name in enumerate(names)})
    groups = [(name, direction) for name in names for direction in DIRECTIONS]
    with scoring(job, model, layers, material.parsed, "batches") as subject:
        hits = count_arcs(subject, sentences, Arcs(groups, rows), job.request.from_word)
    arcs = np.concatenate([part.numpy() for part in rows])
    return dependencies(groups, arcs, {name: counts.numpy() for name, counts in hits.items()})
