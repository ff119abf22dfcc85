"""Running exported models with numpy, onnxruntime and tokenizers, and nothing else.

from compressor.runtime import Translator
print(Translator("out").translate(["First sentence.", "Second one."]))
"""

from importlib.metadata import PackageNotFoundError, version

from compressor.errors import EnvironmentProblem


def _require_one_version() -> None:
    # Both distributions have the files of the runtime. Of two versions, whichever was installed
    # last has overwritten files of the other.
    installed = {}
    for name in ("compress-heads", "compress-heads-runtime"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    if len(set(installed.values())) > 1:
        both = " and ".join(f"{name} {number}" for name, number in installed.items())
        raise EnvironmentProblem(
            f"{both} are installed, which overwrite each other's files; uninstall both, then "
            "install compress-heads to make models, or compress-heads-runtime to run them",
            id="distributions-differ",
        )


_require_one_version()  # before files that may be of another version are imported

# ruff: noqa: E402
from compressor.runtime.batching import collate
from compressor.runtime.classifier import Classifier, MultiLabelClassifier
from compressor.runtime.cross_encoder import Regressor, Reranker
from compressor.runtime.embedder import Embedder
from compressor.runtime.generator import Generator, Translator
from compressor.runtime.question_answerer import Answer, QuestionAnswerer
from compressor.runtime.runtime import Runtime
from compressor.runtime.text import Encoded
from compressor.runtime.token_classifier import Entity, TokenClassifier

__all__ = [
    "Answer", "Classifier", "Embedder", "Encoded", "Entity", "Generator", "MultiLabelClassifier",
    "QuestionAnswerer", "Regressor", "Reranker", "Runtime", "TokenClassifier", "Translator",
    "collate",
]  # fmt: skip
