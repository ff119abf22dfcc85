"""A task from outside the package: a number for a text, as an encoder with one output gives it."""

from compressor.evaluation import METRICS
from compressor.tasks import TASKS
from tests.tasks.rating_task.runtime import Rater


def register() -> None:
    """Make the task known; what it consists of is imported when it is used."""
    TASKS.register("rating", f"{__name__}.task:TASK")
    METRICS.register("within_one", f"{__name__}.task:Within")
    Rater.register()
