"""Makes one artifact of a run of several budgets, in a process that the run started.

    python -m compressor.pipeline.artifact_process

Standard input gives a line with the request, and ends when the run is gone; this process then
ends, too. Standard output has a JSON object a line: what the run is to tell the user, or an error.
What is made are stages in the workspace of the run, which has the lock and reads them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from compressor.errors import CompressError, CompressWarning
from compressor.progress import SILENT, warnings_as_messages


class RunProgress:
    """Progress that the run shows, sent to it as JSON, an object a line."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def send(self, **fields: Any) -> None:
        print(json.dumps(fields), file=self._output, flush=True)

    def message(self, text: str) -> None:
        self.send(message=text)

    def detail(self, text: str) -> None:
        self.send(detail=text)

    def update(self, what: str, done: int, total: int | None) -> None:
        """Nothing: the run shows how many artifacts are done, not the steps of each."""


def make(request: dict[str, Any], progress: RunProgress) -> None:
    """Make the artifact with a number.

    Args:
        request: `recipe`, all options; `output` of the run; `number` of the budget.
    """
    from compressor.pipeline.artifacts import begin, prepare, written_by_run
    from compressor.pipeline.inputs import load
    from compressor.request.recipe import Recipe
    from compressor.request.resolve import resolve
    from compressor.storage.disk import translate_disk_errors
    from compressor.storage.workspace import Workspace

    output = Path(request["output"])
    plan = resolve(Recipe.model_validate(request["recipe"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompressWarning)  # the run has shown them
        inputs = prepare(plan, load(plan.model), output, SILENT)
    workspace = Workspace(output, progress, shared=True)
    workspace.mute_finished()
    needed = partial(written_by_run, inputs)
    with translate_disk_errors(output, needed, lambda: workspace.doing):
        maker = begin(plan, inputs, workspace)
        maker.artifact(maker.trials[request["number"]])


def main() -> int:
    # What libraries print to standard output must not stand between the JSON lines.
    progress = RunProgress(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    try:
        with warnings_as_messages(progress):
            make(request, progress)
    except CompressError as error:
        progress.send(error={"kind": type(error).__name__, "message": str(error), "id": error.id})
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _end_with_the_run() -> None:
    sys.stdin.read()
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
