"""Studies of a model's heads: the analyses of Michel et al. 2019 and Voita et al. 2019.

One file per study, with a function `study(model, rows, options)`, and one request each in
`options.STUDIES`; `run_study` is the only entry. `docs/studies.md` says what each is for and what
its columns mean.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.progress import SILENT, Progress
from compressor.study.options import STUDIES, StudyRequest

if TYPE_CHECKING:
    from compressor.study.output import Result

__all__ = ["STUDIES", "StudyRequest", "run_study"]


def run_study(request: StudyRequest, output: Path, progress: Progress = SILENT) -> Result:
    """Run a study and write `study-NAME.json`, `.md`, `.png` and `.svg` to `output`."""
    from compressor.report.plots import plot_style
    from compressor.study.inputs import caveats, facts, open_inputs
    from compressor.study.output import require_output, write_result

    require_output(output, request.name)
    model, rows = open_inputs(request, progress)
    # By its name, since `--help` lists the studies and must not wait for PyTorch.
    module = import_module(f"compressor.study.{request.name}")
    # The name becomes part of the ids in the SVG, which are random without it.
    with plot_style(f"study-{request.name}"):
        result: Result = module.study(model, rows, request)
        result = replace(
            result,
            data={**facts(request.name, model, rows), **result.data},
            sentences=[*result.sentences, *caveats(result.data, rows)],
        )
        write_result(result, request.name, output)
    return result
