"""What the units of a model cost, in multiply-adds over the rows of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compressor.model.sublayers import TOKEN_KIND, TOKEN_UNITS, Mask, kind_of, layer_of

Unit = tuple[str, int]  # sublayer, and number of one of its units


@dataclass(frozen=True)
class TokenCosts:
    """Multiply-adds of one unit of a kind, by the tenths of tokens that its layer works on.

    Args:
        received: what is computed of all tokens that the layer gets, at 0 to `TOKEN_UNITS` tenths.
        handed_on: what is computed of those alone that it hands on.
        in_last: what the unit costs in the last layer, by the tenths that this gets.
    """

    received: tuple[float, ...]
    handed_on: tuple[float, ...]
    in_last: tuple[float, ...]


@dataclass(frozen=True)
class UnitCosts:
    """Multiply-adds over the rows, everything counted.

    Args:
        dense: of the whole dense model.
        units: kind of sublayer -> of one head or neuron.
        tokens: vocabulary entries that a translator's dense decoder scores; 0 for a classifier.
        token: of scoring one vocabulary entry.
        units_of_one_token: as `units`, in a last layer that computes one token alone; empty where
            it computes all.
        by_tokens: as `units`, by the tenths of a row's tokens that a layer works on; empty where
            all layers work on all.
    """

    dense: float
    units: Mapping[str, float]
    tokens: int = 0
    token: float = 0.0
    units_of_one_token: Mapping[str, float] = field(default_factory=dict)
    by_tokens: Mapping[str, TokenCosts] = field(default_factory=dict)

    def per_unit(self, mask: Mask) -> dict[str, float]:
        """Multiply-adds of one head or neuron of each sublayer, of the model that a mask leaves.

        Tokens have no cost of their own: what they save is work of heads and neurons.
        """
        layers = [layer for layer in mask.layers() if layer not in mask.dropped]
        tenths = mask.handed_on()
        last = max(layers, key=lambda layer: int(layer.rpartition(".")[2]), default="")
        of_last = self.units_of_one_token or self.units
        # Tenths that each layer gets and hands on. The last one is none of them: see `in_last`.
        worked = dict(zip(layers, zip((TOKEN_UNITS, *tenths), tenths, strict=False), strict=False))
        costs = {}
        for name in mask.keep:
            kind, layer = kind_of(name), layer_of(name)
            if kind == TOKEN_KIND:
                continue
            if layer in worked:
                received, handed_on = worked[layer]
                by_tokens = self.by_tokens[kind]
                costs[name] = by_tokens.received[received] + by_tokens.handed_on[handed_on]
            elif tenths and layer == last:
                costs[name] = self.by_tokens[kind].in_last[tenths[-1]]
            else:
                costs[name] = (of_last if layer == last else self.units)[kind]
        return costs

    def share(self, mask: Mask, tokens: int | None = None) -> float:
        """The share of the dense model's multiply-adds that a mask leaves.

        Args:
            mask: the units that are kept.
            tokens: vocabulary entries that the pruned decoder scores; None: as many as the dense.
        """
        saved = 0.0 if tokens is None else self.token * (self.tokens - tokens)
        full = Mask({name: (True,) * len(flags) for name, flags in mask.keep.items()})
        dense, left = self.per_unit(full), self.per_unit(mask)
        counts, totals = mask.counts(), mask.totals()
        saved += sum(cost * totals[n] - left[n] * counts[n] for n, cost in dense.items())
        return 1 - saved / self.dense


def token_sublayers(mask: Mask) -> list[str]:
    """Names of the token sublayers of the encoder layers that are left, but the last.

    Empty where tokens are no units.
    """
    left = [x for x in mask.layers() if x.startswith("encoder") and x not in mask.dropped]
    names = [f"{TOKEN_KIND}.{layer.partition('.')[2]}" for layer in left[:-1]]
    return [name for name in names if name in mask.keep]


class WorkLeft:
    """The multiply-adds of a model that loses units one after the other.

    Args:
        costs: of its units.
        mask: the units that it has.
    """

    def __init__(self, costs: UnitCosts, mask: Mask) -> None:
        self._costs = costs
        self._mask = mask  # whose tokens are up to date
        self._per_unit = costs.per_unit(mask)
        self._counts = {name: mask.counts()[name] for name in self._per_unit}
        self._tokens = token_sublayers(mask)
        left = [layer for layer in mask.layers() if layer not in mask.dropped]
        # Heads and neurons of each layer that is left.
        self._layers = [[name for name in self._counts if layer_of(name) == x] for x in left]

    def cost(self, units: Iterable[Unit]) -> float:
        """What heads or neurons cost at present."""
        return sum(self._per_unit[name] for name, _ in units)

    def remove(self, units: Iterable[Unit]) -> float:
        """Remove units, tokens or others; what that saves."""
        saved = 0.0
        for name, unit in units:
            if kind_of(name) != TOKEN_KIND:
                self._counts[name] -= 1
                saved += self._per_unit[name]
            elif name in self._tokens:
                before = self._total()
                self._mask = self._mask.without([(name, unit)])
                self._per_unit = self._costs.per_unit(self._mask)
                saved += before - self._total()
        return saved

    def of_tokens(self) -> list[list[float]]:
        """Multiply-adds by the tenths that a layer hands on, [token sublayers][TOKEN_UNITS + 1].

        That is its own work on these tokens, and all that the next layer does of each that it gets.
        """
        last = len(self._tokens)
        costs = []
        for number in range(last):
            per_unit = [(x, self._costs.by_tokens[kind_of(x)]) for x in self._layers[number]]
            parts = [(self._counts[name], unit.handed_on) for name, unit in per_unit]
            per_unit = [(x, self._costs.by_tokens[kind_of(x)]) for x in self._layers[number + 1]]
            parts += [
                (self._counts[name], unit.in_last if number + 1 == last else unit.received)
                for name, unit in per_unit
            ]
            tenths = range(TOKEN_UNITS + 1)
            costs.append([sum(count * unit[x] for count, unit in parts) for x in tenths])
        return costs

    def _total(self) -> float:
        return sum(cost * self._counts[name] for name, cost in self._per_unit.items())
