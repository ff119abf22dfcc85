"""The parts of a checkpoint, what each costs, and how much of it is in no unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from compressor.budgets.counts import Macs
from compressor.budgets.unit_costs import TokenCosts, UnitCosts
from compressor.model.checkpoint import Checkpoint
from compressor.model.languages import languages, text_codes
from compressor.model.modeling_tokens import computes_one_token
from compressor.model.sublayers import (
    KINDS,
    TOKEN_KIND,
    TOKEN_UNITS,
    UNITS_OF,
    Units,
    kind_of,
)
from compressor.model.token_selection import hands_on_fewer
from compressor.model.token_tables import count_tokens
from compressor.model.weights import computed_weights, count_parameters
from compressor.tasks import TASKS, Example, Task
from compressor.throughput.multiply_adds import (
    ModelShape,
    WorkSize,
    multiply_adds,
    shape_of,
    total_multiply_adds,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCH = 16
TOKENS = (16, 128, 512)  # per row, where the model takes as many
_FIXED = EMBEDDINGS, VOCABULARY, OTHER = "embeddings", "vocabulary", "other"


@dataclass(frozen=True)
class PartFacts:
    """One kind of sublayer, or another part of the model."""

    # A kind of sublayer; embeddings; vocabulary: the projection to a decoder's tokens; other:
    # normalizations, biases that stay without units, and a classifier's head.
    name: str
    of: Units | None  # what its units are, for kinds of sublayers
    units: list[int]  # how many each of its sublayers has
    unit_width: int  # `head_dim` of a head, 1 of a neuron
    parameters: int  # how many belong to it (see `inspect_checkpoint`)
    macs_share: list[float]  # of the multiply-adds at each of the shapes


@dataclass(frozen=True)
class ShapeFacts:
    """A batch, and its multiply-adds."""

    batch_size: int
    source_tokens: int
    target_tokens: int
    fixed_share: float  # that no head or neuron has
    least_share: float | None  # smallest that `--macs` can ask for; None of a pruned model


@dataclass(frozen=True)
class Inspection:
    """All that `compress inspect` shows."""

    model: str
    revision: str | None
    model_type: str
    task: str
    dtype: str
    parameters: int
    parts: list[PartFacts]
    # Tenths of a row's tokens that each layer but the last hands on; empty: all.
    handed_on: list[int]
    tied: bool  # whether the vocabulary projection has the embeddings' weights, counted there
    tokens: int  # with an embedding
    token_parameters: int  # theirs: embeddings, and the projection to a decoder's tokens
    languages: int  # that a translator knows by tokens of their own
    says_source: bool  # whether it is told the source's language, too, not the target's alone
    shapes: list[ShapeFacts]


def inspect_checkpoint(checkpoint: Checkpoint) -> Inspection:
    """Count the parameters and multiply-adds of a checkpoint's parts.

    A head's parameters are its rows of the query, key and value projections with their biases, and
    its columns of the output projection; a neuron's are its row of the projection up with its bias,
    and its column of the projection down. The output bias remains when all units are removed.
    """
    model: Any = checkpoint.model
    owned, tied = _parameters(checkpoint)
    tenths = checkpoint.mask.handed_on()
    works, shapes = [], []
    for tokens in sorted({min(tokens, checkpoint.max_source_tokens) for tokens in TOKENS}):
        size = WorkSize(BATCH, tokens, tokens if checkpoint.entry.decoder else 0)
        works.append(work := _work(checkpoint, size))
        fixed, least = sum(work[x] for x in _FIXED), _least_share(checkpoint, size)
        shapes.append(ShapeFacts(size.batch, size.source, size.target, fixed, least))
    parts = [
        PartFacts(
            name=name,
            of=UNITS_OF.get(name),
            units=[len(checkpoint.mask.kept(x.name)) for x in checkpoint.layers if x.kind == name],
            unit_width=next((x.unit_width for x in checkpoint.layers if x.kind == name), 0),
            parameters=count,
            macs_share=[work[name] for work in works],
        )
        for name, count in owned.items()
    ]
    known, codes = languages(checkpoint.tokenizer), text_codes(checkpoint.tokenizer)
    rows, token_weights = count_tokens(model)
    return Inspection(
        model=checkpoint.name,
        revision=checkpoint.revision,
        model_type=str(model.config.model_type),
        task=checkpoint.task,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        parameters=sum(owned.values()),
        parts=parts,
        handed_on=list(tenths) if hands_on_fewer(tenths) else [],
        tied=tied,
        tokens=rows,
        token_parameters=token_weights,
        languages=len(known or {*codes.values()}),
        says_source=bool(known),
        shapes=shapes,
    )


def _parameters(checkpoint: Checkpoint) -> tuple[dict[str, int], bool]:
    """Parameters of each part; whether the vocabulary projection has the embeddings' weights."""
    from torch import nn

    model: Any = checkpoint.model
    owned = {kind: 0 for kind in checkpoint.mask.kinds() if kind != TOKEN_KIND}
    for layer in checkpoint.layers:
        if checkpoint.mask.kept(layer.name):
            inputs = [model.get_submodule(path) for path in layer.inputs.values()]
            owned[layer.kind] += sum(x.numel() for module in inputs for x in module.parameters())
            owned[layer.kind] += model.get_submodule(layer.output).weight.numel()
    # Tables of tokens, positions and token types, each once; ELECTRA's projection of them too.
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    tables += [x for name, x in model.named_parameters() if "embeddings_project." in name]
    tables = list({id(weight): weight for weight in tables}.values())
    owned[EMBEDDINGS] = _count(model, tables)
    projection, tied = model.get_output_embeddings(), False
    if projection is not None:
        tied = any(projection.weight is weight for weight in tables)
        owned[VOCABULARY] = _count(model, [w for w in projection.parameters() if not tied])
    owned[OTHER] = count_parameters(model) - sum(owned.values())
    return owned, tied


def _count(model: nn.Module, weights: Iterable[Tensor]) -> int:
    """Stored numbers in these weights."""
    computed = computed_weights(model)
    stored = {id(weight) for name, weight in model.named_parameters() if name not in computed}
    return sum(weight.numel() for weight in weights if id(weight) in stored)


def _work(checkpoint: Checkpoint, size: WorkSize) -> dict[str, float]:
    """Share of the multiply-adds of one batch by part; all 0 where there are none."""
    work = dict.fromkeys([*KINDS, *_FIXED], 0)
    shape = _shapes(checkpoint)(checkpoint.mask.counts())
    for name, count in multiply_adds(shape, size).items():
        start = name.partition(".")[0]
        work[start if start in work else OTHER] += count
    total = sum(work.values()) or 1
    return {part: count / total for part, count in work.items()}


def _least_share(checkpoint: Checkpoint, size: WorkSize) -> float | None:
    """The share of the multiply-adds that is left when all goes that may by default."""
    if checkpoint.pruning is not None:
        return None
    # Of any share: the limits are the same.
    budget = Macs(macs=[0.5]).with_default_units(not checkpoint.needs_all_tokens)
    costs = _costs_at(checkpoint, [(size.source, size.target)])
    return budget.least_share(budget.limits(checkpoint.mask), costs)


def unit_costs(checkpoint: Checkpoint, task: Task, examples: Sequence[Example]) -> UnitCosts:
    """Multiply-adds of a dense model over encoded rows, one by one and without padding.

    Everything is counted, the vocabulary too. As all operations that belong to a unit are linear
    in the number of units, one unit less says what each costs. Of those of an encoder that reads
    one token, they are the sum of two numbers: one for the tokens that a layer gets, one for those
    that it hands on.
    """
    return _costs_at(checkpoint, [(len(x.source), task.target_tokens(x)) for x in examples])


def _costs_at(checkpoint: Checkpoint, lengths: Sequence[tuple[int, int]]) -> UnitCosts:
    """For rows of these source and target lengths."""
    full, rows_of = checkpoint.mask, Counter(lengths)
    shaped = _shapes(checkpoint)

    def count(shape: ModelShape) -> float:
        return sum(
            rows * total_multiply_adds(shape, WorkSize(1, *size)) for size, rows in rows_of.items()
        )

    shape = shaped(full.counts())
    dense = count(shape)

    def of_units(one_token: bool) -> dict[str, float]:
        """Kind -> multiply-adds of a unit of its first sublayer, or of its last one."""
        found = {}
        for kind in full.kinds():
            names = [name for name in full.keep if kind_of(name) == kind]
            smaller = full.without([(names[-1 if one_token else 0], 0)])
            shapes = (replace(x, one_token=one_token) for x in (shape, shaped(smaller.counts())))
            whole, less = map(count, shapes)
            found[kind] = whole - less
        return found

    of_all = of_units(one_token=False)
    if not shape.decodes:
        if not shape.one_token:
            return UnitCosts(dense, of_all)
        by_tokens = {kind: _by_tokens(kind, shape, count) for kind in of_all}
        return UnitCosts(
            dense, of_all, units_of_one_token=of_units(one_token=True), by_tokens=by_tokens
        )
    one_token_less = replace(shape, vocabulary=shape.vocabulary - 1)
    return UnitCosts(dense, of_all, shape.vocabulary, dense - count(one_token_less))


def _by_tokens(kind: str, shape: ModelShape, count: Callable[[ModelShape], float]) -> TokenCosts:
    """Multiply-adds of one unit of a kind by the tokens that its layer works on."""

    def cost(layer: int, received: int, handed_on: int) -> float:
        """Multiply-adds of one unit of the kind, in one of three layers that have no other."""
        one, none = (tuple(n * (layer == x) for x in range(3)) for n in (1, 0))
        heads, neurons = (one, none) if UNITS_OF[kind] == "heads" else (none, one)
        without = replace(
            shape, encoder_heads=none, encoder_ffn=none, handed_on=(received, handed_on)
        )
        return count(replace(without, encoder_heads=heads, encoder_ffn=neurons)) - count(without)

    tenths = range(TOKEN_UNITS + 1)
    least = cost(1, TOKEN_UNITS, 0)  # with one token that is handed on
    return TokenCosts(
        received=tuple(cost(1, x, 0) for x in tenths),
        handed_on=tuple(cost(1, TOKEN_UNITS, x) - least for x in tenths),
        in_last=tuple(cost(2, x, x) for x in tenths),
    )


def _shapes(checkpoint: Checkpoint) -> Callable[[Mapping[str, int]], ModelShape]:
    """The shape of a checkpoint's model, by the number of units that each sublayer has."""
    task, config = TASKS[checkpoint.task], checkpoint.model.config
    tokens = task.graphs.output_tokens(checkpoint)
    return partial(
        shape_of,
        task,
        config.to_dict(),  # type: ignore[union-attr,operator]
        output_tokens=None if tokens is None else len(tokens),
        one_token=computes_one_token(checkpoint.model),
    )
