"""Options of a run that belong to no method, budget or recovery: a class for each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from compressor.errors import UsageError
from compressor.export.engine_names import ONNXRUNTIME, engines_to_export
from compressor.export.precision_names import BASE, split_precisions
from compressor.options.bounds import Amounts, BatchSize, Beams, Resamples, Rows, Threads, Tokens
from compressor.options.declare import Options, option, split_commas
from compressor.report.card_facts import CardFacts
from compressor.report.rule import Inconclusive, Rule
from compressor.tasks import TASKS
from compressor.tasks.rows import Direction, Reading

TASK = option(
    None,
    short="-t",
    panel="Model and output",
    help=f"Task: {', '.join(TASKS)}. Default: the usual one of models of this class.",
)
VERIFY = option(True, panel="General", help="Check the files against manifest.json first.")
CUDA_GRAPHS = option(
    True, help="On CUDA, capture small batches as CUDA graphs, where graphs are made for that."
)


class Access(Options):
    """How a checkpoint is opened."""

    panel: ClassVar[str] = "Model and output"

    revision: str | None = option(None, help="Branch, tag or commit of a hub model.")
    allow_pickle: bool = option(False, help="Load weights that exist only as pytorch_model.bin.")
    trust_remote_code: bool = option(False, help="Let the checkpoint run its own code.")
    verify: bool = VERIFY

    def access(self) -> dict[str, Any]:
        """Arguments of `open_checkpoint`."""
        return {name: getattr(self, name) for name in Access.model_fields}


class ModelSection(Access):
    """The checkpoint, its task and its languages."""

    path: str = option(
        name="model", short="-m", files=True, help="Checkpoint: a local directory or a hub id."
    )
    task: str | None = TASK
    source_language: str | None = option(
        None, help="Code of the language that a multilingual model translates from, as in eng_Latn."
    )
    target_language: str | None = option(
        None, help="Code of the language that a multilingual model translates into."
    )
    prefix: str | None = option(
        None,
        help="Text before every source, as in 'translate English to German: ' (T5); the artifact "
        "records it.",
    )


class Columns(Options):
    """The columns of a table of rows."""

    panel: ClassVar[str] = "Data"

    source_column: str | None = option(
        None,
        help="Text to translate or to summarize; default: by a usual name, such as source or "
        "article, or the model's language.",
    )
    target_column: str | None = option(
        None,
        help="Reference translation or summary; default: by a usual name, such as target or "
        "summary, or the model's language.",
    )
    text_column: str | None = option(
        None,
        help="Text, or first text of pairs; given alone, texts are single. Default: by a usual "
        "name, such as text, sentence1 or query; of tokens in JSONL: tokens.",
    )
    text_pair_column: str | None = option(
        None,
        help="Second text of pairs; default: by a usual name, such as sentence2 or hypothesis.",
    )
    label_column: str | None = option(
        None,
        help="Label, score or relevance; default: by a usual name, such as label or score; tags of "
        "tokens in JSONL: tags.",
    )
    header: bool = option(
        True, help="The first line of a table names its columns. --no-header: they are 1, 2, ..."
    )
    quoted: bool | None = option(
        None,
        help="Quotation marks quote the cells of .tsv files, as programs write that write CSV; "
        "--no-quoted: they are text. Default: as the file shows.",
    )

    def columns(self) -> dict[str, Any]:
        """Arguments of `RowReader.read_rows`."""
        return {name: getattr(self, name) for name in Columns.model_fields}

    def reading(self, languages: Direction = (None, None)) -> Reading:
        """How texts without answers are read.

        Args:
            languages: codes of the languages that a model translates from and into.
        """
        named = {
            name: value
            for name, value in self.columns().items()
            if name.endswith("_column") and value is not None
        }
        return Reading(named, languages=languages)


class CalibrationData(Columns):
    """Calibration rows."""

    calibration: str | None = option(
        None,
        files=True,
        first=True,
        help="Rows to score, recover and fit int8 on: TSV, CSV, JSONL, or SRC,TGT text files; each "
        "may be packed (.gz, .zst).",
    )
    calibration_rows: Rows | None = option(
        None, first=True, only_with="calibration", help="Use only the first N, at least 8."
    )


class Data(CalibrationData):
    """Calibration and test rows."""

    test: str | None = option(
        None, first=True, files=True, help="Rows to measure quality and speed on."
    )
    test_rows: Rows | None = option(
        None, first=True, only_with="test", help="Use only the first N, at least 8."
    )


class TestData(Columns):
    """Rows to measure finished artifacts on; two are enough."""

    test: str = option(first=True, help="Rows to measure on.")
    test_rows: int | None = option(None, first=True, ge=2, help="Use only the first N.")


class Export(Options):
    """The graphs that are written."""

    panel: ClassVar[str] = "Export"

    precision: Annotated[list[str], BeforeValidator(split_precisions)] = option(
        [BASE],
        help="fp32 (default), fp32,int8, fp32,fp16, or auto: int8 for the CPU, fp16 for CUDA.",
    )
    engines: Annotated[list[str], BeforeValidator(engines_to_export)] = option(
        [ONNXRUNTIME],
        help="Libraries to export for, as in onnxruntime,ctranslate2: what each needs is written, "
        "and its answers are compared with PyTorch's. openvino is for encoders, ctranslate2 for "
        "encoder-decoders; pytorch and pytorch-compiled (encoders) run the dense model, to compare "
        "with. Where a GPU is timed, pytorch is compared with unasked.",
    )
    target_text: str | None = option(
        None,
        files=True,
        help="Text in the target language, a sentence a line, or JSONL: exported decoders score "
        "only tokens that occur in it, or that anything can be spelled with.",
    )
    source_text: str | None = option(
        None,
        files=True,
        help="Texts like those that the model will read, a text a line, or JSONL: an encoder keeps "
        "only the tokens that occur in them, or that anything can be spelled with. An "
        "encoder-decoder needs --target-text beside it, and keeps the tokens of both.",
    )
    keep_languages: Annotated[list[str], BeforeValidator(split_commas)] = option(
        [],
        help="With --source-text, codes of a translator's languages to keep beside those that it "
        "translates from and into, as in fra_Latn,spa_Latn.",
    )


class RunExport(Export):
    """The graphs that a run writes; it learns what a single export cannot."""

    candidates: int | None = option(
        None,
        ge=1,
        le=10_000,
        help="Decoders of pruned models score only the output tokens that occur most strongly with "
        "a batch's source tokens: this many for each, as in 100, and five times as many frequent "
        "ones. They are counted in the dense model's answers to --distill-text. For onnxruntime "
        "on CPUs, in fp32 and int8.",
    )


class MetricSettings(Options):
    """How metrics count."""

    panel: ClassVar[str] = "Measurement"

    bleu_tokenizer: str | None = option(
        None,
        help="sacreBLEU's tokenizer for BLEU, as in zh or char. Default: the one for the "
        "references' script, 13a where that has spaces.",
    )

    @property
    def tokenizers(self) -> dict[str, str]:
        """Metric -> the tokenizer that is asked for."""
        return {} if self.bleu_tokenizer is None else {"bleu": self.bleu_tokenizer}


class Evaluation(MetricSettings):
    """How quality is measured."""

    num_beams: Beams | None = option(None, help="Beam width; the checkpoint's own by default.")
    resamples: Resamples = option(1000, help="Bootstrap resamples.")


class RunEvaluation(Evaluation):
    """How a run measures quality, and what its report shows of it."""

    samples: int = option(
        4,
        ge=0,
        le=100,
        help="Test rows that the report shows with all models' outputs; 0 shows none, for rows "
        "that are private.",
    )


BatchSizes = Annotated[
    list[BatchSize],
    BeforeValidator(split_commas),
    AfterValidator(lambda sizes: list(dict.fromkeys(sizes))),
]


class Benchmark(Options):
    """How throughput is measured."""

    panel: ClassVar[str] = "Measurement"

    batch_size: BatchSizes = option(
        [1, 4, 16, 64], short="-b", min_length=1, help="Batch sizes to measure, as in 1,16,64."
    )
    lengths: Literal["data"] | Tokens = option(
        "data", help="Source lengths to time: data or a token count."
    )
    target_length: Tokens | None = option(
        None, help="Tokens to generate when timing; default: the data's mean."
    )
    seconds: float = option(
        3.0,
        name="bench_seconds",
        gt=0,
        le=3600,
        allow_inf_nan=False,
        help="Least seconds of timing per batch size and model, in the mean over the models.",
    )
    threads: Threads | None = option(
        None, help="CPU threads of the runtime. Default: all cores that the process may use."
    )
    cuda_graphs: bool = CUDA_GRAPHS

    def settings(self) -> dict[str, Any]:
        """Keywords of `compressor.throughput.benchmark`."""
        settings = self.model_dump()
        return {"batch_sizes": settings.pop("batch_size"), **settings}


class Builds(Options):
    """The builds of artifacts that are evaluated or timed."""

    panel: ClassVar[str] = "Measurement"

    precision: list[str] | None = option(
        None,
        first=True,
        help="Precisions to run, as in fp32,int8; each artifact's default if none.",
    )
    engine: str = option(
        ONNXRUNTIME,
        first=True,
        help="Libraries to run artifacts in, as in onnxruntime,openvino; each computes in those of "
        "--precision that it has.",
    )


class Card(Options):
    """Facts of the model card that are not measured; by default those of the checkpoint's card."""

    card_license: str | None = option(
        None, help="Model card: license of the weights, as in apache-2.0."
    )
    card_language: Annotated[list[str], BeforeValidator(split_commas)] = option(
        [], help="Model card: languages, as in en,de."
    )
    card_base_model: str | None = option(
        None, help="Model card: hub id of the dense model, where --model is a directory."
    )

    def over(self, known: CardFacts) -> CardFacts:
        """The facts of the checkpoint's card, with these instead where they are given."""
        if self.card_license is not None:
            known = replace(known, license=self.card_license, license_name=None, license_link=None)
        base = (self.card_base_model,) if self.card_base_model else known.base_model
        return replace(known, language=tuple(self.card_language) or known.language, base_model=base)


Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class Gate(Options):
    """The rules that a report must meet."""

    panel: ClassVar[str] = "Gate"

    max_metric_drop: Amounts = option([], help="A metric may fall by at most this, as in bleu=0.5.")
    min_speedup: Amounts = option(
        [], help="Speedup at least: 1.1@16 (at batch 16) or 1.1 (at every batch)."
    )
    min_fastest_speedup: Amounts = option(
        [],
        help="Speedup at least of the fastest build that keeps the quality, over the fastest "
        "dense build of any engine (--engines): 2@16 or 2.",
    )
    max_size_mb: float | None = option(
        None, gt=0, allow_inf_nan=False, help="Megabytes of the ONNX files at most."
    )
    max_macs: Share | None = option(None, help="Multiply-adds at most, as a share of dense: 0.5.")
    max_parameters: Share | None = option(
        None, help="Parameters at most, as a share of dense: 0.5."
    )
    inconclusive: Inconclusive = option(
        "fail",
        help="What a rule counts as whose limit is inside the confidence interval: fail, "
        "pass, or measured (as the measured number says).",
    )

    @model_validator(mode="after")
    def _can_be_inconclusive(self) -> Gate:
        measured = self.max_metric_drop or self.min_speedup or self.min_fastest_speedup
        if self.inconclusive != "fail" and not measured:
            raise UsageError(
                f"--inconclusive {self.inconclusive} is for rules about what is measured with an "
                "interval; give --max-metric-drop or --min-speedup, or leave it out",
                id="option-without-use",
            )
        return self

    def rules(self) -> list[Rule]:
        """The rules that the options ask for; UsageError for a malformed one."""
        from compressor.report.rules import parse_rules  # imports NumPy

        return parse_rules(self.model_dump())


SEED = option(0, panel="General", ge=0, lt=2**32, help="Seed of everything random.")
DEVICE = option("auto", panel="General", help="Where to compute: auto, cpu or cuda.")
Device = Literal["auto", "cpu", "cuda"]
