"""What heads do: positional, syntactic and rare-word heads, and which of them pruning keeps.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the
Rest Can Be Pruned", section 5. `patterns` counts, `role_report` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.export.metadata import max_source_tokens
from compressor.importance import Scoring
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Mask, Sublayer, kind_of
from compressor.study.conllu import read_conllu
from compressor.study.job import Job, make_batches
from compressor.study.options import RolesStudy
from compressor.study.output import Result
from compressor.study.patterns import Arcs, arcs_of, count_arcs, count_positions, rarity
from compressor.study.statistics import ALPHA, holm
from compressor.study.word_alignment import Tokens, tokenize
from compressor.tasks import Batch, Example

ROLES = ("positional", "syntactic", "rare-word")
POSITIONAL = 0.9  # share at one relative position (Voita et al., section 5.1)
SYNTACTIC = 0.1  # accuracy above the best fixed offset (section 5.2.1), and significantly so
# The paper gives no threshold; its rare-word heads do it in 50 to 66 % of the cases (section 5.3).
RARE = 0.5
COMMON = 500  # a sentence counts if its rarest token is not among so many most frequent ones
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # the paper's
MINIMUM_ARCS = 100  # fewer say little about a relation, with so many heads to choose from
NOT_SYNTAX = ("punct",)
DIRECTIONS = ("dependent to head", "head to dependent")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Material:
    """What heads are watched on."""

    batches: Sequence[Batch]  # for positions and rare tokens, of `kinds`
    kinds: tuple[str, ...]
    parsed: Sequence[Batch]  # rows are numbers of `sentences`
    sentences: Sequence[Tokens]
    left_out: int


def study(job: Job) -> Result:
    """Find the role of every self-attention head, and what has become of it after pruning."""
    from compressor.study.role_report import role_result

    pruned = _open_pruned(job)
    material = _material(job)
    model = job.checkpoint
    found = watch(job, "dense", model.model, model.layers, material)
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
        **found,
    }  # fmt: skip
    if pruned is not None:
        kept = {name: pruned.mask.kept(name) for name in found["heads_roles"]}
        layers = [
            replace(layer, units=len(kept[layer.name]))
            for layer in model.layers
            if kept.get(layer.name)
        ]
        after = watch(job, "pruned", pruned.model, layers, material)
        data["pruned"] = {
            "directory": _request(job).pruned,
            "kept": kept,
            "heads_roles": after["heads_roles"],
            "survival": survival(found["heads_roles"], kept),
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
        raise InputError(f"{directory} has lost no heads; give what `compress run` wrote")
    if pruned.layers != job.checkpoint.layers:
        raise InputError(
            f"{directory} was not made from {job.checkpoint.name}: attention layers differ"
        )
    return pruned


def _material(job: Job) -> Material:
    """Rows with all kinds of self-attention if there are any, else parsed sentences alone."""
    if job.calibration is None and _request(job).conllu is None:
        raise UsageError("`compress study roles` needs --calibration FILE, --conllu FILE or both")
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
                "model's tokens; they are too long, or their characters are rewritten"
            )
        parsed = source_batches(job, sentences)
    if left_out:
        job.progress.message(f"{left_out} sentences of {conllu} are left out (not aligned)")
    if job.calibration is None:
        return Material(parsed, ("encoder_self",), parsed, sentences, left_out)
    batches = make_batches(job, checkpoint, job.calibration)
    return Material(batches, ("encoder_self", "decoder_self"), parsed, sentences, left_out)


def source_batches(job: Job, sentences: Sequence[Tokens]) -> list[Batch]:
    """Batches of sentences without targets, for the encoder alone."""
    tokenizer = job.checkpoint.tokenizer
    # A translator's decoder reads but the end token; nothing looks at what it does.
    end = int(tokenizer.eos_token_id) if job.task.generates else 0
    examples = [Example(row, tokens.ids, (end,)) for row, tokens in enumerate(sentences)]
    batches: list[Batch] = job.task.batches(examples, job.checkpoint.model)
    return batches


def special_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """Tokens that are no words: all special ones but the unknown word, and the decoder's start."""
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    generation = getattr(model, "generation_config", None)
    ids |= {getattr(generation, "decoder_start_token_id", None)}
    return frozenset(int(token) for token in ids if token is not None)


def watch(
    job: Job, name: str, model: nn.Module, layers: Sequence[Sublayer], material: Material
) -> Facts:
    """Count where the heads of a model look, and which roles that makes.

    Args:
        name: of the stages.
        layers: with the head counts that the model has.

    Returns:
        `positions`, `relations` (see `relations`), and `heads_roles`: layer name -> for each head
        the list of its roles.
    """
    watched = [layer for layer in layers if layer.kind in material.kinds]
    positions: Facts = job.workspace.stage(
        f"positions-{name}",
        f"{name}: where {sum(layer.units for layer in watched)} heads look",
        lambda: _positions(job, model, watched, material),
    )
    encoder = [layer for layer in layers if layer.kind == "encoder_self"]
    found: list[Facts] = []
    if material.sentences and encoder:
        found = job.workspace.stage(
            f"relations-{name}",
            f"{name}: dependencies in {len(material.sentences)} sentences",
            partial(_relations, job, model, encoder, material),
        )
    return {
        "positions": positions,
        "relations": found,
        "heads_roles": head_roles(positions, found),
    }


def _scoring(
    job: Job, model: nn.Module, layers: Sequence[Sublayer], batches: Sequence[Batch]
) -> Scoring:
    return Scoring(
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
    return relations(groups, arcs, {name: found.numpy() for name, found in hits.items()})


def relation_counts(sentences: Sequence[Tokens]) -> dict[str, int]:
    """How many arcs each syntactic relation has: the paper's first, then by name."""
    counts = Counter(arc[2] for tokens in sentences for arc in tokens.sentence.arcs)
    others = sorted(set(counts).difference(RELATIONS, NOT_SYNTAX))
    return {name: counts[name] for name in (*RELATIONS, *others) if counts[name]}


def relations(
    groups: Sequence[tuple[str, str]], arcs: np.ndarray, hits: dict[str, np.ndarray]
) -> list[Facts]:
    """Accuracy of every head on every relation, against looking at a fixed distance.

    Args:
        groups: relation and direction of each group.
        arcs: [arcs, (word that looks, word to find, group)].
        hits: layer name -> [groups, heads], how often a head looked at the word to find.

    Returns:
        For each group `relation`, `direction`, `arcs`, `offset` and `baseline` (the distance that
        is right most often, and how often), and by layer name `accuracy` and `p_holm`: the chance
        of a binomial with the baseline's accuracy, corrected for all heads and groups.
    """
    from scipy.stats import binom

    found: list[Facts] = []
    p_values: list[float] = []
    for group, (relation, direction) in enumerate(groups):
        rows = arcs[arcs[:, 2] == group]
        offsets, counts = np.unique(rows[:, 1] - rows[:, 0], return_counts=True)
        best = int(counts.argmax())
        baseline = float(counts[best] / len(rows))
        for by_head in hits.values():
            p_values += binom.sf(by_head[group] - 1, len(rows), baseline).tolist()
        found.append(
            {
                "relation": relation,
                "direction": direction,
                "arcs": len(rows),
                "offset": int(offsets[best]),
                "baseline": baseline,
                "accuracy": {n: (h[group] / len(rows)).tolist() for n, h in hits.items()},
            }
        )
    adjusted = iter(holm(p_values))
    for facts in found:
        facts["p_holm"] = {
            name: [next(adjusted) for _ in by_head] for name, by_head in facts["accuracy"].items()
        }
    return found


def is_syntactic(one: Facts, name: str, head: int) -> bool:
    """Whether a head is well above the best fixed distance, and by more than chance (Holm).

    Args:
        one: an entry of `relations`.
        name: of a layer; those that are not in the entry have no such heads.
    """
    if name not in one["accuracy"]:
        return False
    above = one["accuracy"][name][head] - one["baseline"]
    return bool(above >= SYNTACTIC and one["p_holm"][name][head] < ALPHA)


def head_roles(positions: Facts, found: Sequence[Facts]) -> dict[str, list[list[str]]]:
    """The roles of each head, by layer name, in the order of `ROLES`."""
    roles: dict[str, list[list[str]]] = {}
    for name, counted in positions.items():
        roles[name] = []
        for head, share in enumerate(counted["share"]):
            has = (
                share >= POSITIONAL,
                any(is_syntactic(one, name, head) for one in found),
                counted.get("rare", [0.0] * (head + 1))[head] >= RARE,
            )
            roles[name].append([role for role, yes in zip(ROLES, has, strict=True) if yes])
    return roles


def survival(roles: dict[str, list[list[str]]], kept: dict[str, list[int]]) -> list[dict[str, Any]]:
    """How many heads of each role pruning has kept, against as many drawn at random.

    Within a kind of attention, because kinds are not pruned alike.

    Returns:
        For each kind and role `heads` with it, `kept` of them, `expected` by chance, and `p`, the
        chance of so many or more (hypergeometric); also for `any` role and for `none`.
    """
    from scipy.stats import hypergeom

    rows = []
    for kind in dict.fromkeys(kind_of(name) for name in roles):
        heads = [(n, h) for n in roles if kind_of(n) == kind for h in range(len(roles[n]))]
        left = {(name, head) for name, head in heads if head in kept[name]}
        for role in (*ROLES, "any", "none"):
            those = {key for key in heads if _has(roles[key[0]][key[1]], role)}
            stayed = len(those & left)
            rows.append(
                {
                    "kind": kind,
                    "role": role,
                    "heads": len(those),
                    "kept": stayed,
                    "kept_of_all": len(left),
                    "of_all": len(heads),
                    "expected": len(those) * len(left) / len(heads),
                    "p": float(hypergeom.sf(stayed - 1, len(heads), len(those), len(left))),
                }
            )
    return rows


def _has(roles: list[str], role: str) -> bool:
    if role in ("any", "none"):
        return bool(roles) == (role == "any")
    return role in roles
