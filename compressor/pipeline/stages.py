"""The stages of a run in one table: their names, what tells them apart, and what invalidates them.

A function marked `@stage("scores")` is computed once for its keys. Its result is written to the
workspace that is its first argument, and read from there when a stopped run goes on. Where a stage
has to be made again, because its record is damaged or a file that it wrote is lost or changed,
everything in the table that needs it is made again too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from pydantic import TypeAdapter

from compressor import parallel
from compressor.model.memory import trim_memory
from compressor.results import Variant
from compressor.storage.hashes import sha256_of
from compressor.storage.workspace import StageRecord, Workspace

Rest = ParamSpec("Rest")
Result = TypeVar("Result")
DENSE = "dense"  # the plan that stages about the dense model have


@dataclass(frozen=True)
class Stage:
    """One row of the table; `{…}` in texts are arguments of the function.

    Args:
        title: what the user reads while it runs.
        keys: key -> argument, which tell results of the same stage apart.
        needs: stages that it is computed from. When one of them is made again, results with the
            same values of common keys are dropped.
        writes: argument that holds the directory where it writes files for the user, by
            `Workspace.making`.
        weights: file in the state directory with weights, texts or translations that belong to
            the result.
        scratch: files with states of trainings in the state directory, several times the model
            each, which are removed when the stage is finished.
        shared: of several ranks (`compressor.parallel`) all take part in it; otherwise rank 0
            computes it alone. All get the result of rank 0.
    """

    title: str
    keys: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    writes: str = ""
    weights: str = ""
    scratch: tuple[str, ...] = ()
    shared: bool = False


_PLAN = ("plan", "plan.name")
_MODEL = (
    ("plan", "model.family"), ("precision", "model.precision"), ("engine", "model.engine"),
)  # fmt: skip

STAGES: dict[str, Stage] = {
    "started": Stage("reading inputs"),
    "target-text": Stage("cutting {file.path.name} into tokens"),
    "dense": Stage("exporting the dense model to compare with", writes="directory"),
    "unpacked-text": Stage("unpacking {lines.path.name}", weights="distill-text.unpacked"),
    "distill-text": Stage(
        "answering {text.lines.path.name} with the dense model",
        weights="translations.txt",
        scratch=("translations-*.partial",),
        shared=True,
    ),
    "layers": Stage("finding the layers to drop", shared=True),
    "scores": Stage("scoring {scorer}", needs=("layers",), shared=True),
    "costs": Stage("timing sublayers of {kind} with {counts} units", keys=(("kind", "kind"),)),
    "timed-choice": Stage(
        "timing a choice of {mask} (try {number})",
        keys=(("number", "number"),),
        needs=("scores", "costs"),
    ),
    "next-layer": Stage(
        "finding the next layer to drop: {layers}", keys=(("layers", "layers"),), shared=True
    ),
    "layers-try": Stage(
        "trying without layers: {layers}",
        keys=(("layers", "layers"),),
        needs=("costs", "next-layer"),
        shared=True,
    ),
    "candidate": Stage(
        "trying {cut.mask} on {judge.search.count} rows",
        keys=(_PLAN, ("position", "cut.position")),
        needs=("scores", "target-text", "distill-text"),
        scratch=("repair-{plan.name}-candidate-*.safetensors",),
        shared=True,
    ),
    "choice": Stage(
        "{plan.action}",
        keys=(_PLAN,),
        needs=("scores", "costs", "timed-choice", "layers-try", "candidate", "distill-text"),
        weights="weights-{plan.name}.safetensors",
        scratch=("gates-{plan.name}*.safetensors", "repair-{plan.name}-step-*.safetensors"),
        shared=True,
    ),
    "build": Stage(
        "removing units ({choice.mask} kept){builder.repair}, exporting, checking",
        keys=(_PLAN,),
        needs=("choice", "target-text", "distill-text"),
        writes="plan.directory",
        scratch=("repair-{plan.name}-*.safetensors",),
        shared=True,
    ),
    "precision": Stage(
        "exporting {model.name} in {precision}, checking",
        keys=(("plan", "model.family"), ("precision", "precision")),
        needs=("dense", "build"),
        writes="model.directory",
    ),
    "answers": Stage(
        "evaluating {model.name} on {rows.count} rows",
        keys=_MODEL,
        needs=("dense", "build", "precision"),
        shared=True,
    ),
    "search-answers": Stage(
        "evaluating {model.name} on {rows.count} rows to search on",
        keys=_MODEL,
        needs=("dense",),
        shared=True,
    ),
    "comparison": Stage(
        "comparing {model.name} with {base.name} ({resamples} resamples)",
        keys=(*_MODEL, ("base", "base.name")),
        needs=("answers",),
    ),
    "throughput": Stage(
        "measuring throughput at batch {settings.sizes}", needs=("dense", "build", "precision")
    ),
}


def stage(
    name: str,
) -> Callable[
    [Callable[Concatenate[Workspace, Rest], Result]], Callable[Concatenate[Workspace, Rest], Result]
]:
    """Make a function a stage of the table: computed once, resumable, invalidated by its needs."""
    row = STAGES[name]

    def decorate(
        function: Callable[Concatenate[Workspace, Rest], Result],
    ) -> Callable[Concatenate[Workspace, Rest], Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run(workspace: Workspace, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
            bound = signature.bind(workspace, *args, **kwargs)
            bound.apply_defaults()
            arguments, names = bound.arguments, SimpleNamespace(**bound.arguments)
            keys = {key: attrgetter(path)(names) for key, path in row.keys}
            label = "-".join([name, *map(str, keys.values())])
            title = row.title.format(**arguments)
            encode, decode = _forms(function)
            found = parallel.on_main(lambda: workspace.read(label, decode, title))
            if found is None:
                began = parallel.on_main(lambda: _begin(workspace, name, keys, label, title))
                file = row.weights.format(**arguments)
                weights = workspace.state / file if file else None
                if weights is not None and parallel.is_main():
                    weights.unlink(missing_ok=True)  # not every result has some
                if row.shared:
                    made = parallel.agree(function(workspace, *args, **kwargs))
                else:
                    made = parallel.on_main(lambda: function(workspace, *args, **kwargs))
                parallel.on_main(
                    lambda: workspace.finish(
                        label, StageRecord(name, keys, encode(made), _written(workspace, weights)),
                        began,
                    )
                )  # fmt: skip
                trim_memory()
                found = made
            elif row.writes and isinstance(found, Variant):
                # The output directory may have been moved since.
                directory = Path(attrgetter(row.writes)(names)).as_posix()
                found = found.model_copy(update={"directory": directory})
            if parallel.is_main():
                for pattern in row.scratch:
                    for path in workspace.state.glob(pattern.format(**arguments)):
                        path.unlink(missing_ok=True)
            return found

        return run

    return decorate


def _begin(workspace: Workspace, name: str, keys: dict[str, Any], label: str, title: str) -> float:
    """Remove what depends on an earlier result of a stage; returns when the stage began."""
    _drop_dependents(workspace, name, keys)
    began = workspace.begin(label, title)
    workspace.made()  # forgets files of a stage that failed
    return began


def weights_file(workspace: Workspace, name: str, **arguments: Any) -> Path:
    """Where a stage keeps weights that belong to its result."""
    return workspace.state / STAGES[name].weights.format(**arguments)


def _forms(
    function: Callable[..., Result],
) -> tuple[Callable[[Result], Any], Callable[[Any], Result]]:
    """How a function's results become JSON and come back: by their own methods or by type."""
    kind = get_type_hints(function)["return"]
    if hasattr(kind, "to_json"):
        return kind.to_json, kind.from_json
    adapter: TypeAdapter[Result] = TypeAdapter(kind)
    return lambda found: adapter.dump_python(found, mode="json"), adapter.validate_python


def _written(workspace: Workspace, weights: Path | None) -> dict[str, str]:
    """Path -> SHA-256 of the files that a stage wrote."""
    files = workspace.made()
    if weights is not None and weights.exists():
        files[weights.relative_to(workspace.root).as_posix()] = sha256_of(weights)
    return files


def _drop_dependents(workspace: Workspace, name: str, keys: dict[str, Any]) -> None:
    """Remove the records of all stages that need this one, directly or through others."""
    dependents, found = {name}, 0
    while len(dependents) > found:
        found = len(dependents)
        dependents |= {other for other, row in STAGES.items() if dependents & set(row.needs)}
    if name == DENSE:
        keys = {"plan": DENSE}

    def stale(record: StageRecord) -> bool:
        if record.keys.get("plan") == DENSE != keys.get("plan"):
            return False  # what was found about the dense model needs nothing of the pruned ones
        shared = keys.keys() & record.keys.keys()
        same = all(record.keys[key] == keys[key] for key in shared)
        # A comparison is of two models' answers: those of its plan and those of its base.
        compared = record.keys.get("base", "") == keys.get("plan")
        return record.stage in dependents - {name} and (same or compared)

    workspace.drop(stale)
