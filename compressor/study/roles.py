"""Roles of heads: positional, syntactic and rare-word heads, and which of them pruning keeps.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the
Rest Can Be Pruned", section 5. `patterns` counts, `role_criteria` tells the roles, `role_report`
shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.export.metadata import max_source_tokens
from compressor.importance import ScoringJob
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Mask, Sublayer
from compressor.study.conllu import read_conllu
from compressor.study.job import Job, make_batches
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
    head_roles,
    relation_counts,
    relations,
    survival,
)
from compressor.study.role_report import role_result
from compressor.study.word_alignment import Tokens, tokenize
from compressor.tasks import Batch

Facts = dict[str, Any]


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


def study(job: Job) -> Result:
    """Find the roles of all self-attention heads, before and after pruning."""
    pruned = _open_pruned(job)
    material = _material(job)
    model = job.checkpoint
    before = count_roles(job, "dense", model.model, model.attention, material)
    data: Facts = {
        **job.facts(),
        "conllu": _request(job).conllu,
        "sentences": len(material.sentences),
        "left_out": material.left_out,
        "from_word": _request(job).from_word,
        "thresholds": {
            "positional": POSITIONAL, "syntactic": SYNTACTIC, "rare-word": RARE, "common": COMMON,
            "arcs": MINIMUM_ARCS,
        },
        "too_rare": {
            name: count
            for name, count in relation_counts(material.sentences).items()
            if count < MINIMUM_ARCS
        },
        **before,
    }  # fmt: skip
    if pruned is not None:
        kept = {name: pruned.mask.kept(name) for name in before["heads_roles"]}
        layers = [
            replace(layer, units=len(kept[layer.name]))
            for layer in model.attention
            if kept.get(layer.name)
        ]
        after = count_roles(job, "pruned", pruned.model, layers, material)
        data["pruned"] = {
            "directory": _request(job).pruned,
            "kept": kept,
            "heads_roles": after["heads_roles"],
            "survival": survival(before["heads_roles"], kept),
        }
    return role_result(job, data)


def _request(job: Job) -> RolesStudy:
    assert isinstance(job.request, RolesStudy)
    return job.request


def _open_pruned(job: Job) -> Checkpoint | None:
    directory = _request(job).pruned
    if directory is None:
        return None
    pruned = open_checkpoint(directory)
    if pruned.pruning is None:
        raise InputError(
            f"--pruned {directory} has lost no heads; give what `compress run` wrote",
            id="checkpoint-not-pruned",
        )
    if pruned.attention != job.checkpoint.attention:
        raise InputError(
            f"--pruned {directory} was not made from {job.checkpoint.name}: it has other attention "
            "layers",
            id="checkpoints-differ",
        )
    return pruned


def _material(job: Job) -> Material:
    """The calibration rows and the parsed sentences, as far as they are given.

    Parsed sentences have no translations, so that without rows only the encoder is studied.
    """
    if job.calibration is None and _request(job).conllu is None:
        raise UsageError(
            "`compress study roles` needs --calibration FILE, --conllu FILE or both",
            id="rows-missing",
        )
    sentences: list[Tokens] = []
    parsed: list[Batch] = []
    left_out, checkpoint = 0, job.checkpoint
    conllu = _request(job).conllu
    if conllu is not None:
        sentences, left_out = tokenize(
            checkpoint.tokenizer, read_conllu(conllu), max_source_tokens(checkpoint)
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
    if job.calibration is None:
        return Material(parsed, ("encoder_self",), parsed, sentences, left_out)
    batches = make_batches(job, checkpoint, job.calibration)
    return Material(batches, ("encoder_self", "decoder_self"), parsed, sentences, left_out)


def source_batches(job: Job, sentences: Sequence[Tokens]) -> list[Batch]:
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
    ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    generation = getattr(model, "generation_config", None)
    ids |= {getattr(generation, "decoder_start_token_id", None)}
    return frozenset(int(token) for token in ids if token is not None)


def count_roles(
    job: Job, name: str, model: nn.Module, layers: Sequence[Sublayer], material: Material
) -> Facts:
    """Count to what the heads of a model attend, and derive their roles.

    Args:
        name: of the model, in stages and messages.
        layers: with the head counts that the model has.

    Returns:
        `positions` (see `patterns.count_positions`), `relations` (see `role_criteria.relations`),
        and `heads_roles`: layer name -> for each head the list of its roles.
    """
    counted = [layer for layer in layers if layer.kind in material.kinds]
    positions: Facts = job.workspace.stage(
        f"positions-{name}",
        f"{name}: to which tokens {sum(layer.units for layer in counted)} heads attend",
        lambda: _positions(job, model, counted, material),
        dict[str, dict[str, Any]],
    )
    encoder = [layer for layer in layers if layer.kind == "encoder_self"]
    by_relation: list[Facts] = []
    if material.sentences and encoder:
        by_relation = job.workspace.stage(
            f"relations-{name}",
            f"{name}: dependencies in {len(material.sentences)} sentences",
            partial(_relations, job, model, encoder, material),
            list[dict[str, Any]],
        )
    return {
        "positions": positions,
        "relations": by_relation,
        "heads_roles": head_roles(positions, by_relation),
    }


def _scoring(
    job: Job, model: nn.Module, layers: Sequence[Sublayer], batches: Sequence[Batch]
) -> ScoringJob:
    return ScoringJob(
        model=model.to(job.device),
        layers=layers,
        mask=Mask.full(layers),
        batches=batches,
        task=job.task,
        device=job.device,
        progress=lambda done, total: job.progress.update("batches", done, total),
    )


def _positions(job: Job, model: nn.Module, layers: Sequence[Sublayer], material: Material) -> Facts:
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr,arg-type]
    try:
        scoring = _scoring(job, model, layers, material.batches)
        special = special_ids(job.checkpoint)
        rare = rarity(material.batches, vocabulary, COMMON, special)
        return count_positions(scoring, rare, special)
    finally:
        model.to("cpu")


def _relations(
    job: Job, model: nn.Module, layers: Sequence[Sublayer], material: Material
) -> list[Facts]:
    sentences = material.sentences
    names = [name for name, count in relation_counts(sentences).items() if count >= MINIMUM_ARCS]
    if not names:
        return []
    # Two groups per relation, one for each direction.
    rows = arcs_of(sentences, {name: 2 * number for number, name in enumerate(names)})
    groups = [(name, direction) for name in names for direction in DIRECTIONS]
    try:
        hits = count_arcs(
            _scoring(job, model, layers, material.parsed),
            sentences,
            Arcs(groups, rows),
            _request(job).from_word,
        )
    finally:
        model.to("cpu")
    arcs = np.concatenate([part.numpy() for part in rows])
    return relations(groups, arcs, {name: counts.numpy() for name, counts in hits.items()})
