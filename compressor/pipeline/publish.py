"""The end of a run: its report, then reports, recipes, model cards and manifests as files.

Some are of the whole run, some of each artifact.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compressor.errors import InputError
from compressor.export.precisions import set_default
from compressor.model.card import CARD, read_card
from compressor.pipeline.engines import DENSE
from compressor.pipeline.evaluate import fastest_engines
from compressor.pipeline.setup import ArtifactPlan, RunSetup, source_of, source_of_text
from compressor.report import DEFAULT_FORMATS, FORMATS, facts, render_reports
from compressor.report.page import render_card
from compressor.report.publish import only, sample_rows, share_scoring, without_paths
from compressor.report.schema import Report
from compressor.results import QualitySearch, SpeedSearch, Throughput, Variant
from compressor.runtime.artifact import GRAPH_DIRECTORY
from compressor.steps import STATE, Steps
from compressor.storage.hashes import sha256_of
from compressor.storage.manifest import GRAPHS_FILE, MANIFEST, manifest_of
from compressor.storage.outputs import require_written_by_run, write_manifest, write_outputs
from compressor.storage.version import __version__
from compressor.throughput.hardware import describe as describe_hardware
from compressor.throughput.hardware import versions

RECIPE = "recipe.yaml"


def start(*, command: str) -> dict[str, str]:
    """When and how the run was first started."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"created": now, "command": command}


def describe_run(
    setup: RunSetup,
    started: Mapping[str, str],
    dense: Variant,
    builds: Sequence[Variant],
    throughput: Throughput | None,
    search: SpeedSearch | QualitySearch | None,
) -> Report:
    """All results of a run, without the gate's outcomes."""
    checkpoint, data, text = setup.source.checkpoint, setup.data, setup.source_text
    scoring, variants = share_scoring(builds)
    samples = setup.recipe.evaluation.samples
    return Report(
        tool_version=__version__,
        created=started["created"],
        command=started["command"],
        task=checkpoint.task,
        model=checkpoint.name,
        revision=checkpoint.revision,
        model_type=str(checkpoint.model.config.model_type),  # type: ignore[union-attr]
        seed=setup.recipe.seed,
        calibration=source_of(data.calibration) if data.calibration else None,
        test=source_of(data.test) if data.test else None,
        samples=sample_rows(data.test, samples) if data.test else [],
        shared_rows=data.shared,
        scoring=scoring,
        dense=dense,
        variants=variants,
        throughput=throughput,
        search=search,
        source_text=None if text is None else source_of_text(text),
        target_text=setup.tokens.source,
        hardware=describe_hardware(),
        versions=versions(),
    )


def require_own_outputs(steps: Steps, output: Path, plans: Sequence[ArtifactPlan]) -> None:
    """Check, before anything is computed, that the last step will not meet files of the user's."""
    names = (RECIPE, CARD, MANIFEST, *(FORMATS[name].file for name in DEFAULT_FORMATS))
    directories = {output, *(plan.directory for plan in plans)}
    paths = [directory / name for directory in directories for name in names]
    require_written_by_run(output, steps.state, paths)


def publish(steps: Steps, report: Report, setup: RunSetup) -> None:
    """Write reports, recipes, model cards and manifests.

    Only the recipes name the machine's directories: they are for running again.
    """
    output, models = setup.output, facts.pruned(report)
    known = setup.recipe.card.over(read_card(setup.dense.checkpoint.directory))
    texts = {output / RECIPE: setup.recipe.to_yaml()}
    for artifact in setup.artifacts:
        texts[artifact.directory / RECIPE] = setup.recipe.to_yaml(artifact.budget)
    directories = {path.parent for path in texts}
    hashes = _finished_files(steps, report)
    for model in models:
        directory = Path(model.directory)
        own_report = without_paths(only(report, model), directory)
        texts |= render_reports(own_report, directory)
        texts[directory / CARD] = render_card(own_report, model.name, known)
    report = without_paths(report, output)
    if len(models) > 1:
        texts |= render_reports(report, output)

    def write(texts: Mapping[Path, str]) -> None:
        written = write_outputs(output, steps.state, texts)
        hashes.update({x.relative_to(output).as_posix(): sha256 for x, sha256 in written.items()})

    write(texts)
    provenance: dict[str, Any] = {
        "tool": f"compress {__version__}",
        "created": report.created,
        "command": report.command,
        "seed": report.seed,
        "precisions": list(setup.precisions),
        "calibration": report.calibration and report.calibration.model_dump(),
        "versions": report.versions,
        "hardware": report.hardware,
    }
    _write_dense_manifest(steps, provenance)
    # What holds the artifacts comes last: its manifest lists theirs.
    for directory in sorted(directories, reverse=True):
        below = directory.relative_to(output)
        own_hashes = {
            Path(name).relative_to(below).as_posix(): digest
            for name, digest in hashes.items()
            if Path(name).is_relative_to(below)
        }
        manifest = manifest_of(directory, provenance, own_hashes)
        write({directory / MANIFEST: f"{json.dumps(manifest, ensure_ascii=False, indent=1)}\n"})


def _finished_files(steps: Steps, report: Report) -> dict[str, str]:
    """SHA-256 of the steps' files for the user, whose graphs get their default precision."""
    described = {n: digest for n, digest in steps.files.items() if Path(n).name == GRAPHS_FILE}
    changed = steps.lost(described)
    if changed:
        raise InputError(
            f"{changed} was changed while the run was going on; run the same command again",
            id="output-changed",
        )
    hashes = {n: digest for n, digest in steps.files.items() if STATE not in Path(n).parts}
    for model in facts.pruned(report):
        directory = Path(model.directory)
        precision = facts.default_build(report, model).precision
        engines = fastest_engines(facts.builds(report, model), report.throughput)
        path = directory / GRAPH_DIRECTORY / GRAPHS_FILE
        digest = set_default(directory, precision, engines)
        hashes[path.relative_to(steps.root).as_posix()] = digest
    return hashes


def _write_dense_manifest(steps: Steps, provenance: dict[str, Any]) -> None:
    """The dense model's graphs can be opened as an artifact too."""
    directory = steps.state / DENSE
    hashes = steps.files_below(directory)
    graphs = directory / GRAPH_DIRECTORY / GRAPHS_FILE
    hashes[graphs.relative_to(directory).as_posix()] = sha256_of(graphs)
    write_manifest(directory, provenance, hashes)
