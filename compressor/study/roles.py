"""Roles of heads: positional, syntactic and rare-word heads, and which of them pruning keeps.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the
Rest Can Be Pruned", section 5. `patterns` counts, `role_criteria` tells the roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import Checkpoint, open_checkpoint
from compressor.model.sublayers import Sublayer
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, FAINT, MARKERS
from compressor.report.table import ReportTable
from compressor.study.conllu import read_conllu
from compressor.study.inputs import StudyInputs
from compressor.study.options import RolesStudy
from compressor.study.output import Result, table
from compressor.study.patterns import arcs_of, count_arcs, count_positions
from compressor.study.plotting import by_kind, head_panels, legend
from compressor.study.role_criteria import (
    COMMON,
    DIRECTIONS,
    MINIMUM_ARCS,
    POSITIONAL,
    RARE,
    ROLES,
    SYNTACTIC,
    Dependency,
    HeadRoles,
    Roles,
    dependencies,
    head_roles,
    relation_counts,
    survival,
)
from compressor.study.word_alignment import Tokens, tokenize
from compressor.tasks import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = (
    "layer, head, roles, position, best relation, accuracy (baseline), p (Holm), rare, "
    "special tokens"
)


@dataclass(frozen=True)
class Texts:
    """The text on which attention is counted.

    Args:
        batches: for positions and rare tokens.
        kinds: of the self-attention that `batches` exercise.
        sentences: for dependencies; none where no CoNLL-U file is given.
        parsed: batches of the sentences.
        left_out: number of sentences that could not be aligned with tokens.
    """

    batches: Sequence[Batch]
    kinds: tuple[str, ...]
    sentences: Sequence[Tokens]
    parsed: Sequence[Batch]
    left_out: int


def study(request: RolesStudy, inputs: StudyInputs) -> Result:
    """Find the roles of all self-attention heads, before and after pruning."""
    model = inputs.checkpoint
    # First, so that a wrong directory is refused before anything is counted.
    pruned = None if request.pruned is None else _open_pruned(request.pruned, model)
    texts = _open_texts(request, inputs)
    inputs.progress.message("to which tokens the heads of the dense model attend …")
    before = count_roles(request, inputs, model.model, model.attention, texts)
    counts = relation_counts(texts.sentences)
    data: dict[str, Any] = {
        "conllu": request.conllu,
        "sentences": len(texts.sentences),
        "left_out": texts.left_out,
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
        inputs.progress.message("to which tokens the heads of the pruned model attend …")
        kept = {name: pruned.mask.kept(name) for name in before.roles}
        # With the heads that are left; a layer without any attends to nothing.
        layers = [
            replace(layer, units=len(kept[layer.name]))
            for layer in model.attention
            if kept.get(layer.name)
        ]
        after = count_roles(request, inputs, pruned.model, layers, texts)
        data["pruned"] = {
            "directory": request.pruned,
            "kept": kept,
            "heads_roles": after.roles,
            "survival": survival(before.roles, kept),
        }
    return _result(model.name, data, before)


def _open_pruned(directory: str, dense: Checkpoint) -> Checkpoint:
    pruned = open_checkpoint(directory, task=dense.task)
    if pruned.pruning is None:
        raise InputError(
            f"--pruned {directory} has lost no heads; give what `compress run` wrote",
            id="checkpoint-not-pruned",
        )
    # Also of a cut checkpoint these are the layers as the dense model has them.
    if pruned.attention != dense.attention:
        raise InputError(
            f"--pruned {directory} was not made from {dense.name}: it has other attention layers",
            id="checkpoints-differ",
        )
    return pruned


def _open_texts(request: RolesStudy, inputs: StudyInputs) -> Texts:
    """The calibration rows and the parsed sentences, as far as they are given.

    Parsed sentences have no translations, so that without rows only the encoder is studied.
    """
    calibration, conllu = inputs.rows.calibration, request.conllu
    if calibration is None and conllu is None:
        raise UsageError(
            "`compress study roles` needs --calibration FILE, --conllu FILE or both",
            id="rows-missing",
        )
    sentences, left_out = ([], 0) if conllu is None else _read_sentences(conllu, inputs)
    tokenizer, task = inputs.checkpoint.tokenizer, inputs.task
    examples = [
        task.source_example(row, tokens.ids, tokenizer.eos_token_id)
        for row, tokens in enumerate(sentences)
    ]
    parsed = task.batches(examples, inputs.checkpoint.model)
    if calibration is None:
        return Texts(parsed, ("encoder_self",), sentences, parsed, left_out)
    batches = inputs.batches(calibration)
    return Texts(batches, ("encoder_self", "decoder_self"), sentences, parsed, left_out)


def _read_sentences(path: str, inputs: StudyInputs) -> tuple[list[Tokens], int]:
    """The sentences that can be aligned with tokens, and the number of the others."""
    checkpoint = inputs.checkpoint
    sentences, left_out = tokenize(
        checkpoint.tokenizer, read_conllu(path), checkpoint.max_source_tokens
    )
    if not sentences:
        raise InputError(
            f"none of the {left_out} sentences of {path} can be aligned with the model's tokens; "
            "they are too long, or the tokenizer normalizes their characters",
            id="conllu-not-aligned",
        )
    if left_out:
        inputs.progress.message(
            f"{left_out} sentences of {path} are left out: too long, or normalized by the tokenizer"
        )
    return sentences, left_out


def special_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """All special tokens other than the unknown word, and the decoder's start token."""
    tokenizer, model = checkpoint.tokenizer, checkpoint.model
    # An unknown word is a word all the same.
    ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    generation = getattr(model, "generation_config", None)
    ids |= {getattr(generation, "decoder_start_token_id", None)}
    return frozenset(int(token) for token in ids if token is not None)


def count_roles(
    request: RolesStudy,
    inputs: StudyInputs,
    model: nn.Module,
    layers: Sequence[Sublayer],
    texts: Texts,
) -> HeadRoles:
    """Count to what the heads of a model attend, and derive their roles.

    Args:
        layers: with the head counts that the model has.
    """
    watched = [layer for layer in layers if layer.kind in texts.kinds]
    with inputs.scoring(model, watched, texts.batches, "batches") as scoring:
        positions = count_positions(scoring, special_ids(inputs.checkpoint), COMMON)
    counts, followed = relation_counts(texts.sentences), list[Dependency]()
    names = [name for name, count in counts.items() if count >= MINIMUM_ARCS]
    # Parsed sentences have no translations, which a decoder would have to read.
    encoder = [layer for layer in layers if layer.kind == "encoder_self"]
    if names and encoder:
        # Two groups per relation, one for each direction.
        groups = [(name, direction) for name in names for direction in DIRECTIONS]
        arcs = arcs_of(texts.sentences, {name: 2 * number for number, name in enumerate(names)})
        with inputs.scoring(model, encoder, texts.parsed, "batches") as scoring:
            hits = count_arcs(scoring, texts.sentences, arcs, len(groups), request.from_word)
        flat = np.concatenate([rows.numpy() for rows in arcs])
        followed = dependencies(groups, flat, {name: x.numpy() for name, x in hits.items()})
    return HeadRoles(positions, followed, head_roles(positions, followed))


def _result(model: str, data: dict[str, Any], dense: HeadRoles) -> Result:
    pruned = data.get("pruned")
    heads = {
        (name, head): roles
        for name, by_head in dense.roles.items()
        for head, roles in enumerate(by_head)
    }
    titles = _TITLES if pruned is None else f"{_TITLES}, after pruning"
    rows = {key: _cells(dense, pruned, *key) for key in heads}
    tables = []
    if pruned is not None:
        tables.append(_survival(pruned["survival"]))
    if any(heads.values()):
        with_role = [row for key, row in rows.items() if heads[key]]
        tables.append(table("Heads with a role.", titles, with_role, texts=3))
    if dense.dependencies:
        tables.append(_dependencies(dense.dependencies))
    return Result(
        title=f"Roles of the heads of {model}",
        data=data,
        sentences=_sentences(data, dense, list(heads.values())),
        tables=tables,
        details=[table("All self-attention heads.", titles, list(rows.values()), texts=3)],
        draw=lambda: _figure(dense.roles, None if pruned is None else pruned["kept"]),
    )


def _sentences(data: dict[str, Any], dense: HeadRoles, heads: list[list[str]]) -> list[str]:
    counts = ", ".join(f"{sum(role in roles for roles in heads)} {role}" for role in ROLES)
    none = sum(not roles for roles in heads)
    sentences = [f"Of {len(heads)} self-attention heads: {counts}, {none} without a role."]
    sentences += _syntactic_sentences(data, dense.dependencies)
    rare = [one for one in dense.positions.values() if "rare" in one]
    sentences.append(
        f"Rare-word heads attend to the least frequent token in at least {RARE:.0%} of the cases; "
        f"a random choice does in {rare[0]['rare_chance']:.0%}."
        if rare
        else "Rare-word heads were not looked for: the least frequent token of every sentence is "
        f"among the {data['thresholds']['common']} most frequent ones; give more rows."
    )
    return sentences


def _syntactic_sentences(data: dict[str, Any], followed: list[Dependency]) -> list[str]:
    """How many heads follow dependencies, and which relations were too rare to be tested."""
    if data["conllu"] is None:
        return ["Syntactic heads were not looked for: no --conllu FILE was given."]
    pairs = [(one, name, head) for one in followed for name, head in one.heads()]
    above = [pair for pair in pairs if pair[0].gain(*pair[1:]) >= SYNTACTIC]
    syntactic = sum(one.is_syntactic(name, head) for one, name, head in above)
    sentences = [
        f"Dependencies: {data['sentences']} sentences ({data['left_out']} left out). The "
        "weight on a word is the largest on one of its tokens, the weight from a word that of "
        f"{'its last token' if data['from_word'] == 'last' else 'the mean of its tokens'}. "
        f"{len(above)} of {len(pairs)} pairs of head and relation are 10 points above the best "
        f"fixed distance, {syntactic} of these significantly "
        "(Holm), which makes the head syntactic."
        if followed
        else "Syntactic heads were not looked for: no relation is frequent enough; give more "
        "sentences."
    ]
    if data["too_rare"]:
        names = ", ".join(f"{name} ({count})" for name, count in data["too_rare"].items())
        sentences.append(f"Relations too rare, below {MINIMUM_ARCS} arcs, and left out: {names}.")
    return sentences


def _cells(
    dense: HeadRoles, pruned: dict[str, Any] | None, name: str, head: int
) -> tuple[str, ...]:
    """A head's row of `_TITLES`."""
    counted = dense.positions[name]
    followed = [one for one in dense.dependencies if name in one.accuracy]
    best = max(followed, key=lambda one: one.gain(name, head), default=None)
    syntax = ("", "", "")
    # What a fixed distance finds as often says nothing about a head.
    if best is not None and best.gain(name, head) > 0:
        syntax = (
            f"{best.relation} → {'head' if best.direction.endswith('head') else 'dependent'}",
            f"{100 * best.accuracy[name][head]:.0f}% ({100 * best.baseline:.0f}%)",
            numbers.p_value(best.p_holm[name][head]),
        )
    cells = (
        name,
        str(head),
        ", ".join(dense.roles[name][head]),
        f"{counted['share'][head]:.0%} at {counted['offset'][head]:+d}",
        *syntax,
        f"{counted['rare'][head]:.0%}" if "rare" in counted else "",
        f"{counted['special'][head]:.0%}",
    )
    return cells if pruned is None else (*cells, _after(pruned, name, head))


def _after(pruned: dict[str, Any], name: str, head: int) -> str:
    """Whether pruning kept a head, and its roles in the pruned model."""
    kept = pruned["kept"][name]
    if head not in kept:
        return "removed"
    return "kept: " + (", ".join(pruned["heads_roles"][name][kept.index(head)]) or "no role")


def _dependencies(followed: list[Dependency]) -> ReportTable:
    rows = []
    for one in followed:
        # The baseline is the same for all heads, so the most accurate one is also the most above
        # it.
        name, head = max(one.heads(), key=lambda key: one.accuracy[key[0]][key[1]])
        rows.append(
            (
                one.relation,
                one.direction,
                f"{name} head {head}",
                str(one.arcs),
                f"{100 * one.accuracy[name][head]:.1f}",
                f"{100 * one.baseline:.1f} at {one.offset:+d}",
                numbers.fixed(100 * one.gain(name, head), 1, sign=True),
                numbers.p_value(one.p_holm[name][head]),
                str(sum(one.is_syntactic(*key) for key in one.heads())),
            )
        )
    return table(
        "Dependencies: the best head of each against the best fixed distance (in words), in "
        "percent; p of the difference, corrected for all heads and relations; how many heads are "
        "10 points above with p below 0.05.",
        "relation, direction, best head, arcs, accuracy, baseline, above, p (Holm), heads",
        rows,
        texts=3,
    )


def _survival(survival: list[dict[str, Any]]) -> ReportTable:
    rows = [
        (
            kind_label(one["kind"]),
            {"any": "any role", "none": "no role"}.get(one["role"], one["role"]),
            str(one["heads"]),
            str(one["kept"]),
            numbers.fixed(one["expected"], 1),
            numbers.p_value(one["p"]) if one["heads"] else numbers.ABSENT,
        )
        for one in survival
    ]
    return table(
        "Heads that pruning has kept, by role; expected is the number if as many heads of the kind "
        "were kept at random, p the probability of at least as many by chance (hypergeometric).",
        "kind of attention, role, heads, kept, expected, p",
        rows,
        texts=2,
    )


def _figure(roles: Roles, kept: dict[str, list[int]] | None) -> Figure:
    figure, panels = head_panels({name: len(layer) for name, layer in roles.items()})
    for kind, names in by_kind(roles).items():
        axes = panels[kind]
        heads = [  # (column, row, roles, whether pruning removed it)
            (head, row, has, kept is not None and head not in kept[name])
            for row, name in enumerate(names)
            for head, has in enumerate(roles[name])
        ]
        for i, role in enumerate(ROLES):
            axes.scatter(
                # The marks of a head with several roles stand beside each other.
                [head + 0.24 * (i - 1) for head, _, has, _ in heads if role in has],
                [row for _, row, has, _ in heads if role in has],
                s=22, marker=MARKERS[i], color=COLORS[i], label=role,
            )  # fmt: skip
        axes.set_xticks([x + 0.5 for x in range(max(len(roles[n]) for n in names))], minor=True)
        axes.set_yticks([y + 0.5 for y in range(len(names))], minor=True)
        axes.tick_params(which="minor", length=0)
        axes.grid(which="minor")  # between the heads
        if kept is not None:
            axes.scatter(
                [head for head, _, _, is_gone in heads if is_gone],
                [row for _, row, _, is_gone in heads if is_gone],
                s=60, marker="x", color=FAINT, label="removed", zorder=0,
            )  # fmt: skip
    legend(figure, next(iter(panels.values())), columns=4)
    return figure
