"""What masks are learned from in tests: tiny models and random rows."""

from __future__ import annotations

import random

from compressor.learned_masks import LEARNED, learn
from compressor.learned_masks.method import Learned, LearningJob
from compressor.model.architectures import find_sublayers
from compressor.model.sublayers import Mask, units_of
from compressor.tasks import TASKS, Example
from tests.helpers.tiny import LABELS, TRANSLATORS, tiny_model

MAKERS = ("hard-concrete", "subset")


def examples(name: str, rows: int = 40, seed: int = 0) -> list[Example]:
    """Random rows of 2 to 8 tokens."""
    rng = random.Random(seed)

    def tokens() -> tuple[int, ...]:
        return tuple(rng.randrange(6, 60) for _ in range(rng.choice([2, 3, 5, 8])))

    translation = name in TRANSLATORS
    return [
        Example(row, tokens(), tokens() if translation else (rng.randrange(LABELS),))
        for row in range(rows)
    ]


def learning(name: str, **options) -> LearningJob:
    """A job that keeps 5 heads, but for what `options` say."""
    model = options.pop("model", None) or tiny_model(name)
    keep = options.setdefault("keep", {"heads": 5})
    units = {"heads"} if keep is None else {units_of(pool) for pool in keep}
    layers = [layer for layer in find_sublayers(model) if units_of(layer.kind) in units]
    defaults = {
        "model": model,
        "layers": layers,
        "examples": options.pop("examples", None) or examples(name),
        "task": TASKS["translation" if name in TRANSLATORS else "classification"],
        "floors": dict.fromkeys(Mask.full(layers).kinds(), 0),
    }
    return LearningJob(**defaults | options)


def trained(weights: str) -> dict[str, object]:
    """Options that train weights along, at a rate that changes tiny models; none for `none`."""
    return {} if weights == "none" else {"train_weights": weights, "learning_rate": 1e-3}


def learned_by(method: str, job: LearningJob, **options) -> Learned:
    """What a method learns by its name, in 2 epochs unless `options` say otherwise."""
    return learn(LEARNED[method](**{"epochs": 2} | options), job)
