"""Checkpoints with the tokens of texts alone."""

from __future__ import annotations

from compressor.export.cut_vocabulary import CutVocabulary, check_cut, cut_vocabulary
from compressor.model.checkpoint import Checkpoint
from compressor.tasks.texts import TextFile


def cut_and_checked(checkpoint: Checkpoint, *texts: TextFile) -> CutVocabulary:
    """A checkpoint with the tokens of texts, which reads and answers them as before."""
    cut = cut_vocabulary(checkpoint, *texts)
    check_cut(cut)
    return cut
