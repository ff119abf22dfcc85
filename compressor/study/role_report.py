"""The study of roles as sentences, tables, and a map of the heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compressor.report import numbers
from compressor.report.facts import kind_label
from compressor.report.plots import COLORS, FAINT, MARKERS
from compressor.report.table import ReportTable
from compressor.study.job import Job
from compressor.study.options import RolesStudy
from compressor.study.output import Result, table
from compressor.study.plotting import by_kind, head_panels, legend
from compressor.study.role_criteria import (
    MINIMUM_ARCS,
    RARE,
    ROLES,
    SYNTACTIC,
    Dependency,
    HeadRoles,
    Roles,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = (
    "layer, head, roles, position, best relation, accuracy (baseline), p (Holm), rare, "
    "special tokens"
)


def role_result(job: Job[RolesStudy], data: dict[str, Any], dense: HeadRoles) -> Result:
    """The finished study.

    Args:
        data: of the JSON file.
        dense: its heads.
    """
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
        title=f"Roles of the heads of {job.checkpoint.name}",
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
