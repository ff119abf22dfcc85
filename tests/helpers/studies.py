"""Studies of toy checkpoints, run in this process, and scores of heads that are known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

from compressor.model.checkpoint import open_checkpoint
from compressor.model.sublayers import Mask, Scores
from compressor.model.surgery import prune
from compressor.study.options import STUDIES
from compressor.study.output import PREFIX, render_text
from compressor.study.run import run_study
from compressor.tasks import TASKS
from tests.helpers.recipes import request

RESAMPLES = 200


def scores(**values: list[float]) -> Scores:
    """Scores by stack: `encoder=[0.5, 0.1]`."""
    return Scores({f"{x}_self.0": tuple(v) for x, v in values.items()}, "made", "made", {})


@dataclass(frozen=True)
class Toy:
    """A toy checkpoint with data it knows."""

    model: Path
    calibration: Path
    test: Path
    task: str

    def answers(self, without: list[tuple[str, int]]) -> list[str]:
        """The physically pruned model's answer to each test row alone, by transformers."""
        checkpoint = open_checkpoint(str(self.model))
        mask = Mask.full(checkpoint.layers).without(without)
        model = prune(checkpoint.model, checkpoint.layers, mask)
        answers = []
        for text in TASKS[self.task].read_rows(self.test).sources:
            inputs = checkpoint.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            if self.task == "translation":
                ids = model.generate(**inputs, num_beams=1, do_sample=False)[0]
                answers.append(checkpoint.tokenizer.decode(ids, skip_special_tokens=True))
            else:
                answers.append(f"LABEL_{int(model(**inputs).logits.argmax())}")
        return answers

    def value(self, answers: list[str]) -> float:
        """BLEU or accuracy of answers to the test rows."""
        references = TASKS[self.task].read_rows(self.test).targets
        if self.task == "translation":
            return sacrebleu.corpus_bleu(answers, [references]).score
        return 100 * float(np.mean([a == b for a, b in zip(answers, references, strict=True)]))


def run(name: str, output: Path, **given: Any) -> dict[str, Any]:
    """Run a study in this process; its data, after checking what is always so."""
    options = {k: v if isinstance(v, list) else str(v) for k, v in given.items()}
    if "test" in given:
        options |= {"resamples": RESAMPLES}
    result = run_study(request(STUDIES[name], device="cpu", **options), output)
    data = json.loads((output / f"{PREFIX}{name}.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(result.data))
    page = (output / f"{PREFIX}{name}.md").read_text(encoding="utf-8")
    assert page.startswith("# ")
    assert f"{PREFIX}{name}.png" in page
    assert all((output / f"{PREFIX}{name}.{suffix}").stat().st_size for suffix in ("png", "svg"))
    assert all(sentence in render_text(result) for sentence in result.sentences)
    return data
