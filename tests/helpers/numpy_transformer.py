"""The forward pass of every supported architecture in NumPy float64, for one row without padding.

Written from the papers' formulas, not from this project's code: what heads attend to, what happens
when their outputs are scaled, and what the model's linear part is, all without autograd or hooks.
"""

from __future__ import annotations

import re

import numpy as np
import torch
from scipy.special import erf, expit

from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask

_ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_new": lambda x: x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x * expit(x),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
# From the Transformer layer: norm after attention, feed-forward in, out, and the norm after it.
_BERT = ("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
_DISTILBERT = ("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm")
# On the first token: dense layer, activation, output layer.
_CLASSIFIERS = {
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
        self.kind = model.config.model_type
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

        def keep(module, args, kwargs, path):
            hidden = args[0] if args else kwargs["hidden_states"]
            found[path] = hidden[0].double().numpy()

        handles = [
            module.register_forward_pre_hook(
                lambda m, a, k, path=path: keep(m, a, k, path), with_kwargs=True
            )
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

        query, key, value = (
            split(layer.inputs["query"], x),
            split(layer.inputs["key"], memory),
            split(layer.inputs["value"], memory),
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(layer.unit_width)
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shifted = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities = self._constant(shifted / shifted.sum(-1, keepdims=True))
        self.probabilities[layer.name] = probabilities
        heads = probabilities @ value * self.gates[layer.name][:, None, None]
        return self._linear(layer.output, heads.transpose(1, 0, 2).reshape(len(x), -1))

    def _sub_layer(self, norm, x, function):
        """Residual connection and normalisation: before the function in mBART, else after it."""
        if self.kind == "mbart":
            return x + function(self._norm(norm, x))
        return self._norm(norm, x + function(x))

    def _feed_forward(self, name, into, out):
        def transform(x):
            neurons = self._activate(self._linear(into, x), self.activation)
            return self._linear(out, neurons * self.gates[name])

        return transform

    def _of_kind(self, kind):
        return [layer for layer in self.layers if layer.kind == kind]

    def _classify(self):
        names = _DISTILBERT if self.kind == "distilbert" else _BERT
        (x,) = self.embedded.values()
        for layer in self._of_kind("encoder_self"):
            root = re.match(r".*?\.\d+", layer.block).group()
            norm, into, out, last = (f"{root}.{name}" for name in names)
            neurons = f"encoder_ffn.{layer.index}"
            x = self._sub_layer(norm, x, lambda h, layer=layer: self._attend(layer, h, h))
            x = self._sub_layer(last, x, self._feed_forward(neurons, into, out))
        dense, activation, output = _CLASSIFIERS[self.kind]
        return self._linear(output, self._activate(self._linear(dense, x[:1]), activation))

    def _translate(self):
        memory = self.embedded["model.encoder.layers.0"]
        for layer in self._of_kind("encoder_self"):
            memory = self._bart_attention(layer, memory, None)
            memory = self._bart_feed_forward(layer, memory)
        if self.kind == "mbart":
            memory = self._norm("model.encoder.layer_norm", memory)
        x = self.embedded["model.decoder.layers.0"]
        pairs = zip(self._of_kind("decoder_self"), self._of_kind("cross"), strict=True)
        for self_attention, cross in pairs:
            x = self._bart_attention(self_attention, x, None, causal=True)
            x = self._bart_attention(cross, x, memory)
            x = self._bart_feed_forward(cross, x)
        if self.kind == "mbart":
            x = self._norm("model.decoder.layer_norm", x)
        return x @ self.weights["lm_head.weight"].T + self.weights["final_logits_bias"]

    def _bart_attention(self, layer, x, memory, causal=False):
        return self._sub_layer(
            f"{layer.block}_layer_norm",
            x,
            lambda h: self._attend(layer, h, h if memory is None else memory, causal),
        )

    def _bart_feed_forward(self, layer, x):
        root = layer.block.rpartition(".")[0]
        side = "encoder" if layer.kind == "encoder_self" else "decoder"
        neurons = self._feed_forward(f"{side}_ffn.{layer.index}", f"{root}.fc1", f"{root}.fc2")
        return self._sub_layer(f"{root}.final_layer_norm", x, neurons)


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
