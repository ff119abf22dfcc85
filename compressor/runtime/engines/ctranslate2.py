"""CTranslate2: encoder-decoder models on the CPU, with its own search, in float32 or in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compressor.runtime.artifact import CTRANSLATE2_DIRECTORY, Artifact
from compressor.runtime.batching import Batch
from compressor.runtime.engines import TranslatorEngine
from compressor.runtime.generation import Generation
from compressor.runtime.opening import unusable
from compressor.storage.input_files import read_json
from compressor.storage.names import BASE

_SHARED = "shared_vocabulary.json"
_SEPARATE = ("source_vocabulary.json", "target_vocabulary.json")
# Precision -> what it computes in. The directory holds float32, of which it makes int8 itself.
_COMPUTED = {BASE: "float32", "int8": "int8"}


class CTranslate2(TranslatorEngine):
    """The engine with a search of its own, for encoder-decoder models on the CPU."""

    name = package = "ctranslate2"
    versions = ((4, 8), (5, 0))
    kinds = ("encoder-decoder",)
    folder = CTRANSLATE2_DIRECTORY
    provider = "CTranslate2 CPU"

    @classmethod
    def default_precision(cls, artifact: Artifact) -> str:
        """The artifact's default precision if it is float32 or int8, else float32."""
        return artifact.default_precision if artifact.default_precision in _COMPUTED else BASE

    @classmethod
    def precisions(cls, directory: Path, artifact: Artifact) -> list[str]:
        """Float32 and int8, as far as this processor computes in them."""
        # Raises where the artifact has no model for it.
        cls.files(directory, artifact, BASE)
        can = cls.library().get_supported_compute_types("cpu")
        return [name for name, kind in _COMPUTED.items() if kind in can]

    def translator(self) -> OpenedTranslator:
        """Open the directory that was converted for CTranslate2."""
        setup = self.setup
        return OpenedTranslator(
            setup.directory / CTRANSLATE2_DIRECTORY, setup.precision, setup.threads, setup.workers
        )


class OpenedTranslator:
    """A directory that `ctranslate2.Translator` has opened; a `TokenGenerator`.

    `sources` and `targets` are the tokens in the order of their ids.

    Args:
        directory: with the model and its vocabularies.
        precision: to compute in, `fp32` or `int8`.
        threads: within an operation; None leaves the choice to CTranslate2.
        workers: batches that are computed at the same time.

    Raises:
        InputError: the directory is damaged.
        EnvironmentProblem: CTranslate2 is not installed.
    """

    def __init__(
        self, directory: Path, precision: str = BASE, threads: int | None = None, workers: int = 1
    ) -> None:
        library = CTranslate2.library()
        names = [_SHARED] * 2 if (directory / _SHARED).exists() else _SEPARATE
        try:
            self.sources, self.targets = (read_json(directory / name) for name in names)
            self._ids = {name: number for number, name in enumerate(self.targets)}
            self._model: Any = library.Translator(
                # With 0 threads it takes a number of its own.
                str(directory),
                device="cpu",
                compute_type=_COMPUTED[precision],
                inter_threads=workers,
                intra_threads=threads or 0,
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise unusable(directory, error) from error

    def generate(self, batch: Batch, settings: Generation) -> list[list[int]]:
        """Generate the answers to one padded batch, see `TokenGenerator.generate`.

        Beams are searched by CTranslate2, which stops when as many hypotheses as there are beams
        are finished, as `early_stopping` does.
        """
        limit, ends = settings.limit, settings.eos_token_id
        # It takes tokens by name, without padding, and makes batches of its own.
        lengths = batch["attention_mask"].sum(1).tolist()
        sources = [
            [self.sources[token] for token in row[:length]]
            for row, length in zip(batch["input_ids"].tolist(), lengths, strict=True)
        ]
        options: dict[str, Any] = {"end_token": ends} if ends else {}
        if settings.forced_bos_token_id is not None:
            first = self.targets[settings.forced_bos_token_id]
            options["target_prefix"] = [[first]] * len(sources)
        results = self._model.translate_batch(
            sources,
            beam_size=settings.num_beams,
            length_penalty=settings.length_penalty,
            no_repeat_ngram_size=settings.no_repeat_ngram_size,
            # `min_length` counts the start token. Where nothing ends a row, it is `limit` long.
            min_decoding_length=max(0, settings.min_length - 1) if ends else limit,
            max_decoding_length=limit,
            max_input_length=0,  # no limit: the tokenizer has cut the texts
            return_end_token=True,
            **options,
        )
        rows = [[self._ids[name] for name in result.hypotheses[0]] for result in results]
        forced = settings.forced_eos_token_id
        for row in rows:
            # CTranslate2 has no setting for a token that is forced into the last place.
            if forced is not None and len(row) >= limit:
                # Of several forced tokens, whose scores are equal, a search takes the first.
                row[-1] = min(forced) if isinstance(forced, list) else forced
        return rows
