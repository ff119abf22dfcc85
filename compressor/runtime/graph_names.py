"""Names in the graphs of a decoder, which the export writes and the runtime reads."""

from __future__ import annotations

# The step of every form.
BEST = "best"  # output: the token with the largest logit of each row
CAPACITY = "capacity"  # the caches' length, where the graph writes them in place

# Roles of the graphs that take rows of caches.
SELECT_PAST = "select_past"
SELECT_CACHES = "select_caches"
ROWS = "rows"  # input: the numbers of the rows

# Roles of the step that scores the candidates of a batch, where there are any, and of the graph
# beside it that gathers their rows of the output layer.
CANDIDATE_DECODER = "candidate_decoder"
GATHER_CANDIDATES = "gather_candidates"
CANDIDATE_ROLES = (CANDIDATE_DECODER, GATHER_CANDIDATES)
CANDIDATES = "candidates"  # input of both: numbers of scored tokens, ascending; none: all tokens

# Inputs of a step whose state stays on the device.
SOURCE_MASK = "source_mask"  # see `source_mask`
FILLED = "filled"  # positions of each row that are filled
ROOM = "room"  # tokens that the caches have room for
ADDED = "added"  # to the logits
HISTORY = "history"  # the tokens of all steps, [rows, room + 1]

# The small graph beside it that makes longer caches.
LENGTHEN = "lengthen"
SLOTS = "slots"  # input: which old position each new one has

# The small graph beside it with the largest logits, and the one beside the other forms of a step
# with the largest log-probabilities.
TOP = "top"
RANK = "rank"
COUNT = "count"  # input: how many
TOP_VALUES = "values"
TOP_TOKENS = "tokens"
NORMALIZER = "normalizer"  # the logarithm of the sum of exponentials


def selected(cache: str) -> str:
    """The output of a graph that takes rows, for the cache of that name."""
    return f"selected {cache}"


def present(past: str) -> str:
    """The output of the decoder with the next step's cache of that name."""
    return past.replace("past", "present")


def source_mask(heads: int) -> str:
    """The input with the mask of the sources for cross-attention of so many heads."""
    return f"{SOURCE_MASK}.{heads}"


def after(state: str) -> str:
    """The output of a step with the next step's input of that name."""
    return f"next_{state}"


def lengthened(cache: str) -> str:
    """The output of the graph `LENGTHEN` for the cache of that name."""
    return f"longer {cache}"


def gathered(weight: str) -> str:
    """The input of `CANDIDATE_DECODER` with what `GATHER_CANDIDATES` gathers of that weight."""
    return f"gathered {weight}"
