"""A task from outside the package: a number for a text, as an encoder with one output gives it."""

from compressor.evaluation import METRICS
from compressor.tasks import TASKS
from tests.tasks.regression_task.runtime import Regressor


def register() -> None:
    """Make the task known; what it consists of is imported when it is used."""
    TASKS.register("regression", f"{__name__}.task:TASK")
    METRICS.register("rank_correlation", f"{__name__}.metric:Spearman")
    Regressor.register()
