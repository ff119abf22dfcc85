"""Greedy search for decoders that choose the tokens on the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compressor.runtime.device_decoder import DeviceDecoder, size_class
from compressor.runtime.generation import Generation
from compressor.runtime.search import apply_rules, forced_tokens

# Steps of greedy search between two looks at the tokens. A look waits for the GPU and copies, about
# a tenth of a captured step (an estimate); steps behind the last row's end are lost, 1.5 in mean.
STEPS_AT_ONCE = 4
# Rows that end leave batches of more than this: a step of fewer takes as long, its launches' time.
MANY_ROWS = 64


def greedy_on_device(decoder: DeviceDecoder, settings: Generation) -> list[list[int]]:
    """Greedy search with the tokens chosen on the device, several steps at a time.

    Args:
        decoder: before its first step.
        settings: how to decode, with indices of tokens. No rule may look at the tokens of a row.

    Returns:
        Tokens of each row without the start token, up to and including the end token.
    """
    rows, limit = decoder.rows, settings.limit
    tokens = np.zeros((rows, limit), np.int64)
    lengths = np.full(rows, limit)  # rows go on after their end until they leave
    live = np.arange(rows)  # output row of each row of the decoder
    decoder.feed(np.full(rows, settings.decoder_start_token_id))
    step, phase = 1, None
    while step <= limit:
        if _phase(settings, step) != phase:
            phase = _phase(settings, step)
            # Scores of zero after the rules: -inf for tokens that must not follow.
            added = np.zeros((1, decoder.scored), np.float32)
            before = np.full((1, step), settings.decoder_start_token_id)
            # Log-probabilities have the order of the logits, so these need not be normalized.
            apply_rules(replace(settings, renormalize_logits=False), added, before)
            if forced_tokens(settings, step) is not None:
                # The tokens that are forced have equal scores, so the first one is the best; if
                # all are excluded, the first of all: CUDA's ArgMax finds none among -inf alone.
                best = added[0].argmax()
                added[0] = -np.inf
                added[0, best] = 0
            decoder.add(added[0])
        steps = 1
        while steps < STEPS_AT_ONCE and step + steps <= limit:
            if _phase(settings, step + steps) != phase:
                break
            steps += 1
        chosen = decoder.run(steps)  # [rows, steps]
        tokens[live, step - 1 : step - 1 + steps] = chosen
        ended = np.isin(chosen, settings.eos_token_id)
        first = np.where(ended.any(axis=1), step + ended.argmax(axis=1), limit)
        lengths[live] = np.minimum(lengths[live], first)
        step += steps
        going = lengths[live] >= step
        if not going.any():
            break
        fewer = size_class(int(going.sum())) < decoder.block.rows  # fit into smaller buffers
        if step <= limit and fewer and decoder.block.rows > MANY_ROWS:
            decoder.keep(np.flatnonzero(going))
            live = live[going]
    return [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]


def _phase(settings: Generation, step: int) -> tuple[bool, list[int] | None]:
    """The part of the rules that changes between steps, without those that look at tokens."""
    return step < settings.min_length, forced_tokens(settings, step)
