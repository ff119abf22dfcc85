"""Studies of a model's heads: the analyses of Michel et al. 2019 and Voita et al. 2019.

One file per study, one line each in `STUDIES`; `run_study` is the only entry. `docs/studies.md`
says what each is for and what its columns mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compressor.errors import CompressError, UsageError
from compressor.pipeline.recipe import Recipe, build_recipe
from compressor.pipeline.validate import refuse_unused_rows, refuse_unused_scoring
from compressor.progress import SILENT, Progress

if TYPE_CHECKING:
    from compressor.study.output import Result

_MODEL = frozenset({"model", "revision"})
_COMMON = frozenset(
    {
        "device", "seed", "source_column", "target_column", "text_column", "text_pair_column",
        "label_column", "allow_pickle", "trust_remote_code",
    }
)  # fmt: skip
_TESTING = frozenset({"test", "test_rows", "num_beams", "resamples"})
_SCORING = frozenset({"calibration", "calibration_rows", "method", "per", "normalize", "ablate"})
# Options that only studies have; the others are those of a `Recipe`.
_OWN = frozenset({"other", "points", "checkpoint", "conllu", "pruned", "from_word"})
# Holm's correction over 144 heads takes p-values below 0.05 / 144: many resamples.
RESAMPLES = 10_000


@dataclass(frozen=True)
class Entry:
    """A study: where it is, the options it needs and may be given beside those of all studies."""

    function: str
    needs: tuple[str, ...]
    takes: frozenset[str]


STUDIES: dict[str, Entry] = {
    "heads": Entry("compressor.study.heads:study", ("model", "test"), _MODEL | _TESTING),
    "layers": Entry(
        "compressor.study.layers:study", ("model", "test"), _MODEL | _TESTING | _SCORING
    ),
    "curve": Entry(
        "compressor.study.curve:study",
        ("model", "test"),
        _MODEL | _TESTING | _SCORING | {"recover", "points"},
    ),
    "agreement": Entry(
        "compressor.study.agreement:study",
        ("model", "calibration", "other"),
        _MODEL | _SCORING | {"other"},
    ),
    "training": Entry(
        "compressor.study.training:study",
        ("checkpoint", "test"),
        _TESTING | _SCORING | {"checkpoint", "points"},
    ),
    "roles": Entry(
        "compressor.study.roles:study",
        ("model",),
        _MODEL | {"calibration", "calibration_rows", "conllu", "pruned", "from_word"},
    ),
}


@dataclass(frozen=True)
class Options:
    """What was asked for, checked.

    Args:
        study: its name.
        recipe: the options that studies share with `compress run`.
        method: the scoring method if one was named (the recipe's is a default otherwise).
        other: second data set (agreement).
        points: percentages of heads removed (curve, training); empty for the study's own.
        checkpoints: of one training, in order (training).
        conllu: sentences with dependencies (roles).
        pruned: a compressed checkpoint of the same model (roles).
        from_word: `last` or `mean` over the tokens of a word that attends (roles).
    """

    study: str
    recipe: Recipe
    method: str | None = None
    other: str | None = None
    points: tuple[int, ...] = ()
    checkpoints: tuple[str, ...] = ()
    conllu: str | None = None
    pruned: str | None = None
    from_word: str = "last"


def build_options(study: str, given: Mapping[str, Any]) -> Options:
    """Check the options of a study; None or empty is not given.

    Args:
        given: by name, those of a `Recipe` and those of `Options`; `checkpoint` is a list of
            directories, `points` a list of percentages.

    Raises:
        UsageError: no such study, an option it does not take, one that is missing or wrong.
    """
    if study not in STUDIES:
        raise UsageError(f"there is no study {study!r}; there are {', '.join(STUDIES)}")
    entry = STUDIES[study]
    there = {name: value for name, value in given.items() if value not in (None, [], ())}
    for name in there:
        if name not in entry.takes | _COMMON:
            raise UsageError(f"{_option(name)} makes no sense for `compress study {study}`")
    for name in entry.needs:
        if name not in there:
            raise UsageError(
                f"`compress study {study}` needs {_option(name)}; give it (see --help)"
            )
    checkpoints = tuple(there.get("checkpoint", ()))
    if checkpoints:
        there |= {"model": checkpoints[-1]}
    # A study shows what removal does by itself, unless repair is asked for.
    defaults = {"resamples": RESAMPLES, "recover": "none"}
    recipe = build_recipe(defaults | {n: v for n, v in there.items() if n not in _OWN})
    refuse_unused_rows(recipe)
    if "method" in entry.takes:  # `layers` scores nothing unless a method is named
        scoring = "method" in there or study != "layers"
        refuse_unused_scoring(recipe, [recipe.method] if scoring else [], there)
    points = tuple(there.get("points", ()))
    if any(not 0 <= point <= 100 for point in points) or list(points) != sorted(set(points)):
        text = ",".join(map(str, points))
        raise UsageError(
            f"--points {text}: give percentages from 0 to 100 in rising order, as in 0,20,40"
        )
    from_word = there.get("from_word", "last")
    if from_word not in ("last", "mean"):
        raise UsageError(f"--from-word {from_word!r} is neither last nor mean")
    return Options(
        study, recipe, there.get("method"), there.get("other"), points, checkpoints,
        there.get("conllu"), there.get("pruned"), from_word,
    )  # fmt: skip


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run_study(options: Options, output: Path, progress: Progress = SILENT) -> Result:
    """Run a study and write `study-NAME.json`, `.md`, `.png` and `.svg` to `output`.

    A stopped study goes on where it was when it is started again with the same options.

    Raises:
        CompressError: see `compressor.errors`.
    """
    from compressor.study.job import discard_unused, prepare
    from compressor.study.output import with_shared_rows, write_result

    job = prepare(options, output, progress)
    module, _, function = STUDIES[options.study].function.partition(":")
    try:
        result: Result = getattr(import_module(module), function)(job)
    except CompressError:
        discard_unused(job.workspace, output)
        raise
    result = with_shared_rows(result, job)
    write_result(result, options.study, output)
    return result
