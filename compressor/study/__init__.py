"""Studies of a model's heads: the analyses of Michel et al. 2019 and Voita et al. 2019.

One file per study, one request each in `options.STUDIES`; `run_study` is the only entry.
`docs/studies.md` says what each is for and what its columns mean.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from compressor.errors import CompressError
from compressor.progress import SILENT, Progress
from compressor.study.options import STUDIES, StudyRequest

if TYPE_CHECKING:
    from compressor.study.output import Result

__all__ = ["STUDIES", "StudyRequest", "run_study"]


def run_study(request: StudyRequest, output: Path, progress: Progress = SILENT) -> Result:
    """Run a study and write `study-NAME.json`, `.md`, `.png` and `.svg` to `output`.

    A study that was stopped continues when it is started again with the same options.

    Raises:
        CompressError: see `compressor.errors`.
    """
    from compressor.study.job import prepare
    from compressor.study.output import write_result

    job = prepare(request, output, progress)
    module, _, function = request.function.partition(":")
    with job.workspace:
        try:
            result: Result = getattr(import_module(module), function)(job)
        except CompressError:
            # The options can then be corrected without another output directory.
            job.workspace.discard_unused(output)
            raise
        result = result.with_floor()
        if job.shared_rows:
            result = result.with_shared_rows(job.shared_rows, len(job.rows["test"].sources))
        write_result(result, request.name, output)
    return result
