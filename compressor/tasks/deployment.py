"""What a task knows about its artifacts: who writes, opens and describes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from compressor.options.table import opened

if TYPE_CHECKING:
    from compressor.runtime.engines.engine import Engine
    from compressor.runtime.runtime import Runtime


class Deployment:
    """Graphs of a task's models, and what runs them.

    Args:
        runtime: the subclass of `compressor.runtime.Runtime` for its artifacts, `module:class`.
        exporter: what writes and checks its graphs, a subclass of `TaskGraphs` in
            `compressor/export/task_graphs.py`, as `module:class`.
        pipeline_tag: what model hubs call the task.
        usage: a line of Python that shows what an opened artifact, `model`, does.
        head_on_tokens: whether the head reads every token, not the first alone.
        plain_logits: whether transformers' own class of its checkpoints returns the logits that its
            graphs do, so that PyTorch can be timed as an engine.
    """

    runtime: ClassVar[str]
    exporter: ClassVar[str]
    pipeline_tag: ClassVar[str]
    usage: ClassVar[str]
    head_on_tokens: ClassVar[bool] = False
    plain_logits: ClassVar[bool] = True

    def head(self, config: Mapping[str, Any], width: int) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the linear layers between a token's hidden state and logits.

        Args:
            config: contents of `config.json`.
            width: of the hidden state.
        """
        return ()

    @property
    def graphs(self) -> Any:
        """The `TaskGraphs` that writes and checks its graphs."""
        return opened(self.exporter)(self)

    def engine(self, name: str) -> type[Engine]:
        """The engine of a name.

        Raises:
            UsageError: there is none, or it does not run this task's models.
        """
        from compressor.runtime.engines import engine_for

        return engine_for(name, opened(self.runtime).kind)

    def open(self, directory: str | Path, **options: Any) -> Runtime:
        """Open an artifact; options are those of `Runtime`, whose files are not checked."""
        runtime: Runtime = opened(self.runtime)(directory, verify=False, **options)
        return runtime
