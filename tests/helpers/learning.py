"""What masks are learned from in tests: tiny models and random rows."""

from __future__ import annotations

from compressor.learned_masks import LEARNED, Learned, LearningJob, learn
from compressor.model.architectures import ARCHITECTURES, find_sublayers
from compressor.model.sublayers import Mask, units_of
from compressor.tasks import TASKS
from tests.helpers.batches import examples
from tests.helpers.tiny import tiny_model

MAKERS = ("hard-concrete", "subset")


def learning(name: str, **options) -> LearningJob:
    """A job that keeps 5 heads, but for what `options` say."""
    model = options.pop("model", None) or tiny_model(name)
    keep = options.setdefault("keep", {"heads": 5})
    units = {"heads"} if keep is None else {units_of(pool) for pool in keep}
    layers = [layer for layer in find_sublayers(model) if units_of(layer.kind) in units]
    defaults = {
        "model": model,
        "layers": layers,
        "examples": options.pop("examples", None) or examples(name, 40),
        "task": TASKS[ARCHITECTURES[name].task],
        "floors": dict.fromkeys(Mask.full(layers).kinds(), 0),
    }
    return LearningJob(**defaults | options)


def trained(weights: str) -> dict[str, object]:
    """Options that train weights along, at a rate that changes tiny models; none for `none`."""
    return {} if weights == "none" else {"train_weights": weights, "learning_rate": 1e-3}


def learned_by(method: str, job: LearningJob, **options) -> Learned:
    """What a method learns by its name, in 2 epochs unless `options` say otherwise."""
    return learn(LEARNED[method](**{"epochs": 2} | options), job)
