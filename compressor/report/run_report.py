"""The end of a run: its report, and what is published with it: pages, cards, recipes, manifests."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compressor import parallel
from compressor.evaluation.models import sample_answers, source_of
from compressor.export.precisions import set_default
from compressor.report import DEFAULT_FORMATS, FORMATS, facts, render_reports
from compressor.report.card import render_card
from compressor.report.card_facts import CardFacts
from compressor.report.defaults import fastest_engines
from compressor.report.publish import only, share_scoring, without_paths
from compressor.report.schema import Report, Sample
from compressor.steps.context import Context
from compressor.steps.results import (
    Check,
    QualitySearch,
    Source,
    SpeedSearch,
    Throughput,
    Variant,
)
from compressor.steps.store import STATE
from compressor.steps.values import DENSE
from compressor.storage.hashes import sha256_of
from compressor.storage.manifest import CARD, MANIFEST, RECIPE, manifest_of
from compressor.storage.outputs import require_written_by_run, write_manifest, write_outputs
from compressor.storage.version import __version__
from compressor.tasks import Rows
from compressor.tasks.opened import Inputs
from compressor.tasks.texts import TextFile
from compressor.throughput import hardware


@dataclass(frozen=True)
class Measured:
    """All models of a run, with their quality and their speed, as reports have them."""

    dense: Variant
    builds: Sequence[Variant]  # the others, of which those to serve are marked
    throughput: Throughput | None
    search: SpeedSearch | QualitySearch | None = None  # of the last budget


def run_metadata(*, command: str) -> dict[str, str]:
    """When and how the run was first started."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"created": now, "command": command}


@parallel.run_on_main
def require_own_outputs(output: Path, artifacts: Iterable[Path], context: Context) -> None:
    """Check, before anything is computed, that the last step will not meet files of the user's.

    Args:
        output: of the run.
        artifacts: their directories.
        context: with what the run wrote before.

    Raises:
        InputError: a file that it writes is there, and this run did not write it.
    """
    names = (RECIPE, CARD, MANIFEST, *(FORMATS[name].file for name in DEFAULT_FORMATS))
    directories = {output, *artifacts}
    paths = [directory / name for directory in directories for name in names]
    require_written_by_run(output, context.steps.state, paths)


def describe_run(
    inputs: Inputs,
    kept_tokens: Sequence[Check],
    started: Mapping[str, str],
    measured: Measured,
    seed: int,
    samples: int,
) -> Report:
    """All results of a run, without the gate's outcomes.

    Args:
        inputs: what it started with.
        kept_tokens: checks of models that have the tokens of texts alone.
        started: when and how.
        measured: its models.
        seed: of everything random.
        samples: test rows to show.
    """
    checkpoint, data = inputs.checkpoint, inputs.data
    source_text, target_text = inputs.source_text, inputs.target_text
    scoring, variants = share_scoring(measured.builds)
    variants = [
        x if x.base else x.model_copy(update={"checks": [*kept_tokens, *x.checks]})
        for x in variants
    ]
    return Report(
        tool_version=__version__,
        created=started["created"],
        command=started["command"],
        task=checkpoint.task,
        model=checkpoint.name,
        revision=checkpoint.revision,
        notes=checkpoint.notes,
        model_type=str(checkpoint.model.config.model_type),  # type: ignore[union-attr]
        seed=seed,
        calibration=source_of(data.calibration) if data.calibration else None,
        test=source_of(data.test) if data.test else None,
        samples=sample_rows(data.test, samples) if data.test else [],
        shared_rows=data.shared,
        scoring=scoring,
        dense=measured.dense,
        variants=variants,
        throughput=measured.throughput,
        search=measured.search,
        source_text=None if source_text is None else source_of_text(source_text),
        target_text=None if target_text is None else source_of_text(target_text),
        hardware=hardware.describe(),
        versions=hardware.versions(),
    )


def sample_rows(rows: Rows, samples: int) -> list[Sample]:
    """The test rows that a report shows, long texts shortened."""
    columns = [rows.sources, *([] if rows.pairs is None else [rows.pairs])]
    shown = [sample_answers(column, samples) for column in (*columns, rows.targets)]
    return [Sample(texts=texts, reference=right) for *texts, right in zip(*shown, strict=True)]


def source_of_text(file: TextFile) -> Source:
    """A file of texts, for reports."""
    path = file.path
    return Source(files=[path.as_posix()], rows=file.count(), sha256=sha256_of(path))


def make_default(
    artifact: Path, precision: str, engines: Mapping[str, str], *, directory: Path
) -> None:
    """Write an artifact's description with what it runs where nothing is named.

    Args:
        artifact: its directory.
        precision: that it runs.
        engines: precision -> the engine that is the fastest in it.
        directory: to write to.
    """
    set_default(artifact, precision, engines, directory)


def choose_served(report: Report, context: Context) -> None:
    """Write into every artifact what it runs where no precision and no engine is named."""
    for model in facts.pruned(report):
        directory = Path(model.directory)
        precision = facts.default_build(report, model).precision
        engines = fastest_engines(facts.builds(report, model), report.throughput)
        inputs = directory, precision, engines
        title = f"making {precision} the default of {model.name}"
        context.steps.do(make_default, *inputs, title=title, into=directory)


@parallel.run_on_main
def publish(
    report: Report,
    output: Path,
    recipes: Mapping[Path, str],
    card: CardFacts,
    precisions: Sequence[str],
    context: Context,
) -> None:
    """Write reports, recipes, cards and manifests; recipes alone name the machine's directories.

    Args:
        report: of the run.
        output: its directory.
        recipes: directory of the run, or of an artifact -> its recipe.
        card: what model cards say that was not measured.
        precisions: that were exported.
        context: with the files of the steps.
    """
    steps = context.steps
    models = facts.pruned(report)
    shown = without_paths(report, output)
    facts_of_run = provenance(shown, precisions)
    choose_served(report, context)
    texts = {directory / RECIPE: recipe for directory, recipe in recipes.items()}
    directories = {path.parent for path in texts}
    for model in models:
        directory = Path(model.directory)
        own_report = without_paths(only(report, model), directory)
        texts |= render_reports(own_report, directory)
        texts[directory / CARD] = render_card(own_report, model.name, card)
    if len(models) > 1:
        texts |= render_reports(shown, output)
    hashes = {n: digest for n, digest in steps.files.items() if STATE not in Path(n).parts}

    def write(texts: Mapping[Path, str]) -> None:
        written = write_outputs(output, steps.state, texts)
        hashes.update({x.relative_to(output).as_posix(): sha256 for x, sha256 in written.items()})

    write(texts)
    dense = steps.state / DENSE
    # Its graphs can be opened as an artifact, too.
    write_manifest(dense, facts_of_run, steps.files_below(dense))
    # What holds the artifacts comes last: its manifest lists theirs.
    for directory in sorted(directories, reverse=True):
        below = directory.relative_to(output)
        own_hashes = {
            Path(name).relative_to(below).as_posix(): digest
            for name, digest in hashes.items()
            if Path(name).is_relative_to(below)
        }
        manifest = manifest_of(directory, facts_of_run, own_hashes)
        write({directory / MANIFEST: f"{json.dumps(manifest, ensure_ascii=False, indent=1)}\n"})


def provenance(report: Report, precisions: Sequence[str]) -> dict[str, Any]:
    """What manifests say of the run beside its files."""
    return {
        "tool": f"compress {__version__}",
        "created": report.created,
        "command": report.command,
        "seed": report.seed,
        "precisions": list(precisions),
        "calibration": report.calibration and report.calibration.model_dump(),
        "versions": report.versions,
        "hardware": report.hardware,
    }
