"""Running exported models without torch or transformers.

Needs numpy, onnxruntime and tokenizers, and nothing else:

    from compressor.runtime import Translator
    print(Translator("out").translate(["First sentence.", "Second one."]))
"""

from compressor.runtime.distributions import require_one_version

require_one_version()  # before files that may be of another version are imported

# ruff: noqa: E402
from compressor.runtime.batching import collate
from compressor.runtime.classifier import Classifier, MultiLabelClassifier
from compressor.runtime.embedder import Embedder
from compressor.runtime.entities import Entity
from compressor.runtime.generator import Generator
from compressor.runtime.question_answerer import Answer, QuestionAnswerer
from compressor.runtime.regressor import Regressor
from compressor.runtime.reranker import Reranker
from compressor.runtime.runtime import Runtime
from compressor.runtime.text import Encoded
from compressor.runtime.token_classifier import TokenClassifier
from compressor.runtime.translator import Translator

__all__ = [
    "Answer", "Classifier", "Embedder", "Encoded", "Entity", "Generator", "MultiLabelClassifier",
    "QuestionAnswerer", "Regressor", "Reranker", "Runtime", "TokenClassifier", "Translator",
    "collate",
]  # fmt: skip
