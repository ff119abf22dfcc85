"""The forward pass of every supported architecture in NumPy float64, for one row without padding.

Written from the papers' formulas, not from this project's code: what heads attend to, what happens
when their outputs are scaled, and what the model's linear part is, all without autograd or hooks.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import torch
from scipy.special import erf, expit

from compressor.model.architectures import architecture_of
from compressor.model.layers import find_sublayers
from compressor.model.sublayers import Mask

_ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_new": lambda x: x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x * expit(x),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
# How a classifier gets logits from the first token: a linear layer, an activation, another.
HEADS = {
    "bert": ("bert.pooler.dense", "tanh", "classifier"),
    "roberta": ("classifier.dense", "tanh", "classifier.out_proj"),
    "electra": ("classifier.dense", "gelu", "classifier.out_proj"),
    "distilbert": ("pre_classifier", "relu", "classifier"),
}


class NumpyTransformer:
    """One model and one row.

    Args:
        row: model inputs of one row without padding, as `helpers.batches.one_row` makes them.

    Attributes:
        probabilities: attention layer name -> [heads, queries, keys], of the last `logits` call.
    """

    def __init__(self, model, row, activation: str = "gelu") -> None:
        self.model, self.activation = model, activation
        self.entry = architecture_of(model)
        # Where normalization comes first, each stack ends with one.
        names = [name for name, _ in model.named_modules()]
        self.norm_first = any(re.fullmatch(r".*coder\.layer_norm", name) for name in names)
        self.weights = {n: v.double().numpy() for n, v in model.state_dict().items()}
        self.layers = find_sublayers(model)
        self.embedded = self._embed(row)
        self.probabilities: dict[str, np.ndarray] = {}
        self.gates = {layer.name: np.ones(layer.units) for layer in self.layers}
        self.tape: list[np.ndarray] = []
        self.replayed = None

    def _embed(self, row):
        """What enters the first layer of each stack; there are no heads below."""
        found = {}

        def keep(path, module, args, kwargs):
            hidden = args[0] if args else kwargs["hidden_states"]
            found[path] = hidden[0].double().numpy()

        handles = [
            module.register_forward_pre_hook(partial(keep, path), with_kwargs=True)
            for path, module in self.model.named_modules()
            if re.fullmatch(r".*\.layers?\.0", path)
        ]
        with torch.no_grad():
            self.model(**{name: value for name, value in row.items() if name != "labels"})
        for handle in handles:
            handle.remove()
        return found

    def logits(self, gates=None, frozen: bool = False) -> np.ndarray:
        """[positions, vocabulary] or [1, labels].

        Args:
            gates: sublayer name -> multipliers of its units' outputs, of heads or of neurons;
                1 where absent.
            frozen: take attention probabilities, standard deviations and the ratio of activations
                to their inputs from the last call that was not frozen.
        """
        self.gates = {layer.name: np.ones(layer.units) for layer in self.layers} | (gates or {})
        if frozen:
            self.replayed = iter(self.tape)
        else:
            self.tape, self.replayed = [], None
        return self._translate() if self.model.config.is_encoder_decoder else self._classify()

    def _constant(self, value):
        if self.replayed is not None:
            return next(self.replayed)
        self.tape.append(value)
        return value

    def _linear(self, path, x):
        return x @ self.weights[f"{path}.weight"].T + self.weights[f"{path}.bias"]

    def _activate(self, x, name):
        return x * self._constant(_ACTIVATIONS[name](x) / x)

    def _norm(self, path, x):
        centered = x - x.mean(-1, keepdims=True)
        eps = self.model.get_submodule(path).eps
        deviation = self._constant(np.sqrt((centered**2).mean(-1, keepdims=True) + eps))
        return centered / deviation * self.weights[f"{path}.weight"] + self.weights[f"{path}.bias"]

    def _attend(self, layer, x, memory, causal=False):
        def split(path, source):
            projected = self._linear(path, source)
            return projected.reshape(len(source), layer.units, layer.unit_width).transpose(1, 0, 2)

        query = split(layer.inputs["query"], x)
        key, value = (split(layer.inputs[name], memory) for name in ("key", "value"))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(layer.unit_width)
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shifted = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities = self._constant(shifted / shifted.sum(-1, keepdims=True))
        self.probabilities[layer.name] = probabilities
        heads = probabilities @ value * self.gates[layer.name][:, None, None]
        return self._linear(layer.output, heads.transpose(1, 0, 2).reshape(len(x), -1))

    def _sub_layer(self, norm, x, function):
        """Residual connection and normalisation: before the function or after it."""
        if self.norm_first:
            return x + function(self._norm(norm, x))
        return self._norm(norm, x + function(x))

    def _attention(self, layer, x, memory=None, causal=False):
        """With residual connection and normalization; the layer's first norm, or its second."""

        def attend(h):
            return self._attend(layer, h, h if memory is None else memory, causal)

        return self._sub_layer(self._norms(layer)[layer.kind == "cross"], x, attend)

    def _feed_forward(self, layer, x):
        """The part that follows `layer`, the last attention of its Transformer layer."""
        side = "encoder" if layer.kind == "encoder_self" else "decoder"
        (neurons,) = [x for x in self._of_kind(f"{side}_ffn") if x.index == layer.index]

        def transform(h):
            activated = self._activate(self._linear(neurons.inputs["up"], h), self.activation)
            return self._linear(neurons.output, activated * self.gates[neurons.name])

        return self._sub_layer(self._norms(layer)[-1], x, transform)

    def _norms(self, layer):
        """Paths of the normalizations of a Transformer layer, one for each sublayer, in order."""
        root = re.match(r".*?\.\d+(?=\.)", layer.block).group()
        modules = self.model.get_submodule(root).named_modules()
        return [f"{root}.{path}" for path, x in modules if isinstance(x, torch.nn.LayerNorm)]

    def _of_kind(self, kind):
        return [layer for layer in self.layers if layer.kind == kind]

    def _classify(self):
        (x,) = self.embedded.values()
        for layer in self._of_kind("encoder_self"):
            x = self._feed_forward(layer, self._attention(layer, x))
        dense, activation, output = HEADS[self.model.config.model_type]
        return self._linear(output, self._activate(self._linear(dense, x[:1]), activation))

    def _translate(self):
        memory = self.embedded["model.encoder.layers.0"]
        for layer in self._of_kind("encoder_self"):
            memory = self._feed_forward(layer, self._attention(layer, memory))
        if self.norm_first:
            memory = self._norm("model.encoder.layer_norm", memory)
        x = self.embedded["model.decoder.layers.0"]
        pairs = zip(self._of_kind("decoder_self"), self._of_kind("cross"), strict=True)
        for self_attention, cross in pairs:
            x = self._attention(self_attention, x, causal=True)
            x = self._feed_forward(cross, self._attention(cross, x, memory))
        if self.norm_first:
            x = self._norm("model.decoder.layer_norm", x)
        return x @ self.weights["lm_head.weight"].T + self.weights["final_logits_bias"]


def mask_arrays(mask: Mask) -> dict[str, np.ndarray]:
    """A mask as gates of `NumpyTransformer.logits`."""
    return {name: np.array(flags, dtype=float) for name, flags in mask.keep.items()}


def with_gate(
    gates: dict[str, np.ndarray], name: str, head: int, value: float
) -> dict[str, np.ndarray]:
    """The gates with another value for one unit."""
    changed = gates[name].copy()
    changed[head] = value
    return gates | {name: changed}
