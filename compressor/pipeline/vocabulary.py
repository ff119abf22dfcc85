"""The tokens that the models of a run read and write: all, or those of texts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from compressor.export.candidate_table import learn_candidates
from compressor.export.cut_vocabulary import (
    CHECKING,
    CutVocabulary,
    SeenTokens,
    check_cut,
    cut_to,
    find_tokens,
    finding,
    served_texts,
)
from compressor.export.vocabulary import tokens_of_text
from compressor.model.kept_tokens import KeptIds
from compressor.pipeline.setup import Opened, Plan
from compressor.recovery.planning import RecoveryPlan
from compressor.steps.context import Context
from compressor.steps.results import Check
from compressor.steps.values import DecoderTokens
from compressor.tasks.opened import Inputs, ModelAndRows, with_rows
from compressor.tasks.texts import TextFile


def with_fewer_tokens(opened: Opened, plan: Plan, context: Context) -> tuple[Opened, list[Check]]:
    """Leave the model that units are removed from the tokens of texts alone, if some are given.

    Args:
        opened: the texts, and the model with all tokens, which stays to compare with.
        plan: with further languages that are kept.
        context: how to compute.

    Returns:
        What the run goes on with, and how the smaller model was compared with the whole one.
    """
    given, steps = opened.inputs, context.steps
    whole, data = given.checkpoint, opened.prunable.data
    served = served_texts(whole, given.source_text, given.target_text)
    if not served:
        return opened, []
    seen = steps.do(tokens_of_texts, title=finding(served), opened=given)
    cut = cut_to(whole, served, seen, plan.languages, context.progress)
    checks = steps.do(compare_with_whole, cut.kept, title=CHECKING, opened=cut, context=context)
    source = with_rows(cut.checkpoint, data.fitted, calibrated=opened.dense.calibrated)
    return replace(
        opened,
        prunable=plan.removal.prunable(source, data),
        recovery=opened.recovery.with_tokenizer(cut.checkpoint.tokenizer),
    ), checks


def tokens_of_texts(*, opened: Inputs) -> SeenTokens:
    """The tokens of the texts that the model is to read and to write."""
    checkpoint = opened.checkpoint
    served = served_texts(checkpoint, opened.source_text, opened.target_text)
    return find_tokens(served, checkpoint.tokenizer)


def compare_with_whole(kept: KeptIds, *, opened: CutVocabulary, context: Context) -> list[Check]:
    """Check that the model with some tokens reads and answers its texts as the whole one."""
    return check_cut(replace(opened, kept=kept), context.progress)


def decoder_tokens(
    per_token: int | None, recovery: RecoveryPlan, opened: Opened, context: Context
) -> DecoderTokens:
    """The tokens that decoders of pruned models score: all, those of a text, or candidates.

    Args:
        per_token: candidates of a source token; None: batches have none.
        recovery: with the text that candidates are learned from.
        opened: the model, and the text in the target language.
        context: how to compute.
    """
    source, steps = opened.source, context.steps
    file = opened.inputs.target_text
    if file is None:
        tokens = source.task.graphs.output_tokens(source.checkpoint)
    else:
        title = f"cutting {file.path.name} into tokens"
        tokens = steps.do(target_tokens, file, title=title, opened=source, context=context)
    if per_token is None:
        return DecoderTokens(tokens)
    learned = steps.do(
        learn_candidates,
        per_token,
        recovery,
        tokens,
        title=f"counting {per_token} candidates of each source token",
        into=steps.state,
        opened=source,
        context=context,
    )
    return DecoderTokens(tokens, learned)


def target_tokens(file: TextFile, *, opened: ModelAndRows, context: Context) -> list[int] | None:
    """The tokens of a text in the target language, and those that spell anything; None for all."""
    report = partial(context.progress.update, "target text", total=None)
    seen = tokens_of_text(file, opened.checkpoint.tokenizer, report)
    tokens: list[int] | None = opened.task.graphs.output_tokens(opened.checkpoint, seen)
    return tokens
