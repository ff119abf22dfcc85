"""Roles of heads: positional, syntactic and rare-word heads, and which of them pruning keeps.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the
Rest Can Be Pruned", section 5. `attention` counts, and `role_criteria` decides on the roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from compressor.errors import InputError, UsageError
from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Sublayer
from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, FAINT, MARKERS
from compressor.report.table import Column, ReportTable
from compressor.study import attention
from compressor.study import role_criteria as criteria
from compressor.study.attention import Sentence
from compressor.study.conllu import read_conllu
from compressor.study.options import RolesStudy
from compressor.study.plotting import head_panels, legend
from compressor.study.run import Result, StudiedModel, by_kind, require_same_attention, table
from compressor.study.word_alignment import tokenize
from compressor.tasks.opened import DataRows

# Sentences are left out whose least frequent token is among this many most frequent ones.
COMMON = 500
RELATIONS = ("nsubj", "obj", "amod", "advmod")  # those of the paper
MINIMUM_ARCS = 100  # on fewer arcs one of many heads is far above the baseline by chance
NOT_SYNTAX = ("punct",)  # where punctuation hangs is a convention of the treebank
THRESHOLDS = {  # in the JSON file
    "positional": criteria.POSITIONAL,
    "syntactic": criteria.SYNTACTIC,
    "rare-word": criteria.RARE,
    "common": COMMON,
    "arcs": MINIMUM_ARCS,
}


def roles(model: StudiedModel, rows: DataRows, options: RolesStudy) -> Result:
    """Find the roles of a model's self-attention heads and, with a pruned model, of those it keeps.

    Raises:
        UsageError: there are no rows at all.
        InputError: the pruned model is of another one, or no sentence can be aligned with tokens.
    """
    pruned = None
    if options.pruned is not None:  # opened first: a wrong one is an error before all counting
        pruned = open_checkpoint(options.pruned, task=model.checkpoint.task)
        require_same_attention(pruned, model.checkpoint)  # of a pruned one: before pruning
    sentences, left_out = _read_sentences(options.conllu, model, rows)
    tokenizer, dense = model.checkpoint.tokenizer, model.checkpoint.model
    end = tokenizer.eos_token_id
    examples = [model.task.source_example(i, x.ids, end) for i, x in enumerate(sentences)]
    parsed = model.task.batches(examples, dense)
    start = getattr(getattr(dense, "generation_config", None), "decoder_start_token_id", None)
    # An unknown word is a word all the same.
    special: set[Any] = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} | {start}
    # Parsed sentences have no translations, which a decoder would have to read.
    batches = parsed if rows.calibration is None else model.batches(rows.calibration)
    stacks = ("encoder",) if rows.calibration is None else ("encoder", "decoder")
    occurring = Counter(arc[2] for sentence in sentences for arc in sentence.arcs)
    others = sorted(set(occurring).difference(RELATIONS, NOT_SYNTAX))
    counts = {name: occurring[name] for name in (*RELATIONS, *others) if occurring[name]}
    relations = [name for name, count in counts.items() if count >= MINIMUM_ARCS]
    arcs = attention.arcs_of(sentences, relations)

    def count(network: nn.Module, layers: Sequence[Sublayer]) -> dict[str, Any]:
        watched = [x for x in layers if x.is_self_attention and x.stack in stacks]
        with model.scoring(batches, watched, network=network) as scoring:
            positions = attention.count_positions(scoring, special - {None}, COMMON)
        encoder = [layer for layer in watched if layer.stack == "encoder"]
        with model.scoring(parsed, encoder, network=network) as scoring:
            hits = attention.count_arcs(
                scoring, sentences, arcs, 2 * len(relations), options.from_word
            )
        found = criteria.dependencies(relations, arcs.numpy(), hits)
        roles = criteria.head_roles(positions, found)
        return {"positions": positions, "relations": found, "heads_roles": roles}

    model.progress.message("to which tokens the heads of the dense model attend …")
    data: dict[str, Any] = {
        "conllu": options.conllu,
        "sentences": len(sentences),
        "left_out": left_out,
        "from_word": options.from_word,
        "thresholds": THRESHOLDS,
        "too_rare": {name: count for name, count in counts.items() if count < MINIMUM_ARCS},
        **count(dense, model.layers),
    }
    if pruned is not None:
        model.progress.message("to which tokens the heads of the pruned model attend …")
        kept = {name: pruned.mask.kept(name) for name in data["heads_roles"]}
        # With the heads that are left; a layer without any attends to nothing.
        left = [replace(x, units=len(kept[x.name])) for x in model.layers if kept.get(x.name)]
        data["pruned"] = {
            "directory": options.pruned,
            "kept": kept,
            "heads_roles": count(pruned.model, left)["heads_roles"],
            "survival": criteria.survival(data["heads_roles"], kept),
        }
    tables, every = _tables(data)
    title = f"Roles of the heads of {model.checkpoint.name}"
    return Result(title, data, _sentences(data), tables, _figure(data), [every])


def _read_sentences(
    path: str | None, model: StudiedModel, rows: DataRows
) -> tuple[list[Sentence], int]:
    """The sentences that can be aligned with tokens, and the number of the others."""
    if path is None:
        if rows.calibration is None:
            raise UsageError(
                "`compress study roles` needs --calibration FILE, --conllu FILE or both",
                id="rows-missing",
            )
        return [], 0
    read, limit = read_conllu(path), model.checkpoint.max_source_tokens
    sentences = tokenize(model.checkpoint.tokenizer, read, limit)
    left_out = len(read) - len(sentences)
    left = f"{left_out} sentences of {path} are too long, or normalized by the tokenizer"
    if not sentences:
        raise InputError(f"{left}, and there are no others; give more", id="conllu-not-aligned")
    if left_out:
        model.progress.message(f"{left}: left out")
    return sentences, left_out


def _sentences(data: dict[str, Any]) -> list[str]:
    heads = [has for of_layer in data["heads_roles"].values() for has in of_layer]
    counts = ", ".join(f"{sum(role in has for has in heads)} {role}" for role in criteria.ROLES)
    none = sum(not has for has in heads)
    sentences = [f"{len(heads)} self-attention heads: {counts}, {none} without a role."]
    if data["relations"]:
        pairs = [(row, *head) for row in data["relations"] for head in criteria.heads_of(row)]
        above = sum(criteria.gain(*pair) >= criteria.SYNTACTIC for pair in pairs)
        significant = sum(criteria.is_syntactic(*pair) for pair in pairs)
        sentences.append(
            f"Dependencies: {data['sentences']} sentences ({data['left_out']} left out). {above} "
            f"of {len(pairs)} pairs of head and relation are 10 points above the best fixed "
            f"distance, {significant} of these significantly (Holm), which makes the head "
            "syntactic."
        )
    else:
        sentences.append(
            "Syntactic heads were not counted: give --conllu FILE with more sentences."
        )
    if data["too_rare"]:
        names = ", ".join(f"{name} ({count})" for name, count in data["too_rare"].items())
        sentences.append(f"Relations too rare, below {MINIMUM_ARCS} arcs, and left out: {names}.")
    chances = [one["rare_chance"] for one in data["positions"].values() if "rare" in one]
    sentences.append(
        "Rare-word heads attend to the least frequent token in at least "
        f"{criteria.RARE:.0%} of the cases; a random choice does in {chances[0]:.0%}."
        if chances
        else f"Rare-word heads were not counted: all rows have one of the {COMMON} most frequent "
        "tokens as their rarest; give more rows."
    )
    return sentences


def _tables(data: dict[str, Any]) -> tuple[list[ReportTable], ReportTable]:
    """The tables for the terminal and the page, and that of all heads for the page alone."""
    tables = []
    kept = []
    more = []
    if "pruned" in data:
        more.append(Column("after pruning"))
        for one in data["pruned"]["survival"]:
            role = {"any": "any role", "none": "no role"}.get(one["role"], one["role"])
            counts = kind_label(one["kind"]), role, str(one["heads"]), str(one["kept"])
            p = numbers.p_value(one["p"] if one["heads"] else None)
            kept.append((*counts, numbers.fixed(one["expected"], 1), p))
        tables.append(table("survival", kept))
    heads = [(x, i, has) for x, roles in data["heads_roles"].items() for i, has in enumerate(roles)]
    with_role = [_cells(data, name, head) for name, head, has in heads if has]
    if with_role:
        tables.append(table("roles", with_role, more=more, which="Heads with a role."))
    if data["relations"]:
        tables.append(table("dependencies", map(_dependency_cells, data["relations"])))
    every = [_cells(data, name, head) for name, head, _ in heads]
    return tables, table("roles", every, more=more, which="All self-attention heads.")


def _cells(data: dict[str, Any], name: str, head: int) -> tuple[str, ...]:
    """A head's row in the tables of heads."""
    counted = data["positions"][name]
    syntax = ("", "", "")
    relations = [row for row in data["relations"] if name in row["accuracy"]]
    best = max(relations, key=lambda row: criteria.gain(row, name, head), default=None)
    # A relation that a fixed distance predicts as often says nothing about a head.
    if best is not None and criteria.gain(best, name, head) > 0:
        syntax = (
            f"{best['relation']} → {best['direction'].rpartition(' ')[2]}",
            f"{100 * best['accuracy'][name][head]:.0f}% ({100 * best['baseline']:.0f}%)",
            numbers.p_value(best["p_holm"][name][head]),
        )
    after_pruning = ["removed"] if "pruned" in data else []
    if "pruned" in data and head in (kept := data["pruned"]["kept"][name]):
        roles = data["pruned"]["heads_roles"][name][kept.index(head)]
        after_pruning = [f"kept: {', '.join(roles) or 'no role'}"]
    return (
        name,
        str(head),
        ", ".join(data["heads_roles"][name][head]),
        f"{counted['share'][head]:.0%} at {counted['offset'][head]:+d}",
        *syntax,
        f"{counted['rare'][head]:.0%}" if "rare" in counted else "",
        f"{counted['special'][head]:.0%}",
        *after_pruning,
    )


def _dependency_cells(row: criteria.Dependency) -> tuple[str, ...]:
    heads = criteria.heads_of(row)
    # The baseline is the same for all heads: the most accurate one is the most above it.
    name, head = max(heads, key=lambda one: row["accuracy"][one[0]][one[1]])
    return (
        row["relation"],
        row["direction"],
        f"{name} head {head}",
        str(row["arcs"]),
        f"{100 * row['accuracy'][name][head]:.1f}",
        f"{100 * row['baseline']:.1f} at {row['offset']:+d}",
        numbers.fixed(100 * criteria.gain(row, name, head), 1, sign=True),
        numbers.p_value(row["p_holm"][name][head]),
        str(sum(criteria.is_syntactic(row, *one) for one in heads)),
    )


def _figure(data: Mapping[str, Any]) -> Figure:
    roles: criteria.Roles = data["heads_roles"]
    figure, panels = head_panels({name: len(heads) for name, heads in roles.items()})
    for kind, names in by_kind(roles).items():
        axes = panels[kind]
        heads = [(x, y, has) for y, name in enumerate(names) for x, has in enumerate(roles[name])]
        for i, role in enumerate(criteria.ROLES):
            with_role = [(x, y) for x, y, has in heads if role in has]
            axes.scatter(
                # The marks of a head with several roles stand beside each other.
                [x + 0.24 * (i - 1) for x, _ in with_role],
                [y for _, y in with_role],
                s=22,
                marker=MARKERS[i],
                color=COLORS[i],
                label=role,
            )
        if "pruned" in data:
            kept = data["pruned"]["kept"]
            removed = [(x, y) for x, y, _ in heads if x not in kept[names[y]]]
            axes.scatter(
                [x for x, _ in removed],
                [y for _, y in removed],
                s=60,
                marker="x",
                color=FAINT,
                label="removed",
                zorder=0,
            )
    legend(figure, next(iter(panels.values())), columns=4)
    return figure
