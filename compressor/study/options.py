"""The options of each study: a request class for each, which names its function."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import override

from compressor.importance import METHODS, ScoringMethod
from compressor.options.assemble import Chosen, Request
from compressor.options.bounds import Beams, Resamples
from compressor.options.declare import option, split_commas
from compressor.options.recipe import DEFAULT_METHOD, Method
from compressor.options.refuse import require_rows
from compressor.options.sections import (
    DEVICE,
    SEED,
    CalibrationData,
    Columns,
    Data,
    Device,
    MetricSettings,
    ModelSection,
    TestData,
)
from compressor.options.table import Table
from compressor.recovery import Reconstruct, RecoveryMethod

_METHOD = option(DEFAULT_METHOD, first=True, help=f"How to score heads. Default: {DEFAULT_METHOD}.")
Percentages = Annotated[
    list[Annotated[int, Field(ge=0, le=100)]],
    BeforeValidator(split_commas),
    AfterValidator(lambda x: sorted(set(x))),
]
_RECOVERIES = {"reconstruct": Reconstruct}  # training at every point would take hours
_POINTS_HELP = "Percentages of heads to remove, as in 0,20,40."


class Testing(MetricSettings):
    """How a study measures quality."""

    num_beams: Beams | None = option(
        None, help="Beam width of encoder-decoders; default: 1, greedy."
    )
    # Many, because Holm's correction over 144 heads takes p-values below 0.05 / 144.
    resamples: Resamples = option(10_000, help="Bootstrap resamples.")


class ScoredAndTestRows(Data):
    """Rows to score on, and rows to measure quality on."""

    test: str = option(first=True, help="Rows to measure quality on.")


class StudyRequest(Request):
    """Base of the requests: what all studies take.

    The first line of a subclass's docstring is the help of its command.
    """

    panel: ClassVar[str] = "Study"

    name: ClassVar[str]
    function: ClassVar[str]  # `package.module:function`, imported when the study runs
    example: ClassVar[str]
    model: ModelSection
    data: Columns
    seed: int = SEED
    device: Device = DEVICE

    def checkpoints(self) -> list[ModelSection]:
        """The models to study; with several, the last is the main one."""
        return [self.model]


class MeasuringStudy(StudyRequest):
    """Base of the requests of studies that measure quality."""

    evaluation: Testing


class HeadsStudy(MeasuringStudy):
    """Quality with each head removed alone."""

    name = "heads"
    function = "compressor.study.heads:heads"
    example = "compress study heads -m MODEL --test test.tsv -o out"
    data: TestData


class LayersStudy(MeasuringStudy):
    """Quality with all heads of a layer removed but one."""

    name = "layers"
    function = "compressor.study.layers:layers"
    example = "compress study layers -m MODEL --calibration valid.tsv --test test.tsv -o out"
    data: ScoredAndTestRows
    method: Annotated[ScoringMethod | None, Chosen(METHODS)] = option(
        None, first=True, help="Keep the head with the highest score. Default: the best head."
    )

    @override
    def check(self) -> None:
        require_rows(self.method, [], self.data)


class CurveStudy(MeasuringStudy):
    """Quality against heads removed, of each kind and of all kinds."""

    name = "curve"
    function = "compressor.study.curve:curve"
    example = "compress study curve -m MODEL --calibration valid.tsv --test test.tsv -o out"
    data: ScoredAndTestRows
    method: Method = _METHOD
    recovery: Annotated[list[RecoveryMethod], Chosen(_RECOVERIES, many=True)] = option(
        "none", name="recover", first=True, help="none (default) or reconstruct at every point."
    )
    points: Percentages = option(list(range(0, 101, 10)), help=_POINTS_HELP)

    @override
    def check(self) -> None:
        require_rows(self.method, self.recovery, self.data)


class AgreementData(CalibrationData):
    """Two sets of rows to score on."""

    calibration: str = option(help="The first data set to score on.")
    other: str = option(help="The second data set.")


class AgreementStudy(StudyRequest):
    """Do two data sets, or two halves of one, rank heads alike?"""

    name = "agreement"
    function = "compressor.study.agreement:agreement"
    example = "compress study agreement -m MODEL --calibration a.tsv --other b.tsv -o out"
    data: AgreementData
    method: Method = _METHOD


class TrainingModels(ModelSection):
    """The checkpoints of one training."""

    path: list[str] = option(  # type: ignore[assignment]
        first=True,
        name="checkpoint",
        min_length=2,
        help="A checkpoint; repeat in the order of training.",
    )


class TrainingStudy(MeasuringStudy):
    """How the ranking of heads and the cost of pruning change over a training."""

    name = "training"
    function = "compressor.study.over_training:training"
    example = (
        "compress study training --checkpoint EARLY --checkpoint LAST --calibration valid.tsv "
        "--test test.tsv -o out"
    )
    model: TrainingModels
    data: ScoredAndTestRows
    method: Method = _METHOD
    points: Percentages = option(list(range(0, 100, 20)), help=_POINTS_HELP)

    @override
    def check(self) -> None:
        require_rows(self.method, [], self.data)

    @override
    def checkpoints(self) -> list[ModelSection]:
        return [self.model.model_copy(update={"path": one}) for one in self.model.path]


class RolesStudy(StudyRequest):
    """Which heads are positional, syntactic, or attend to rare words."""

    name = "roles"
    function = "compressor.study.roles:roles"
    example = "compress study roles -m MODEL --calibration valid.tsv -o out"
    data: CalibrationData
    conllu: str | None = option(None, help="Sentences with dependencies (CoNLL-U).")
    pruned: str | None = option(None, help="The model after pruning (a directory).")
    from_word: Literal["last", "mean"] = option(
        "last", help="Attention from a word's last token or the mean."
    )


_REQUESTS = (HeadsStudy, LayersStudy, CurveStudy, AgreementStudy, TrainingStudy, RolesStudy)
STUDIES: Table[type[StudyRequest]] = Table("study", {study.name: study for study in _REQUESTS})
