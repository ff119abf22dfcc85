"""The most that a checkpoint may ask for, checked before anything is built.

Several times what the largest models of the supported architectures have; docs/checkpoints.md lists
them.
"""

from __future__ import annotations

from compressor.model.architecture import Architecture, Stack

LAYERS, HEADS, WIDTH, NEURONS = 1024, 1024, 65_536, 1_048_576
VOCABULARY, POSITIONS, TYPES, LABELS = 16_777_216, 65_536, 65_536, 65_536
DISTANCES = 4096  # of relative positions
COMPUTED_POSITIONS = 8_388_608  # numbers in a table of sinusoidal positions, which are computed


def size_bounds(entry: Architecture) -> dict[str, tuple[int, int]]:
    """Name in an architecture's configuration -> the least and the most that it may be."""
    sizes = entry.sizes
    bounds = {
        **dict.fromkeys(("hidden_size", sizes.width, sizes.embedding or sizes.width), (1, WIDTH)),
        **dict.fromkeys(("vocab_size", "decoder_vocab_size"), (1, VOCABULARY)),
        **dict.fromkeys(("num_labels", "_num_labels"), (1, LABELS)),
        "max_position_embeddings": (1, POSITIONS),
        "type_vocab_size": (sizes.least_types, TYPES),
        **dict.fromkeys([sizes.head_width] if sizes.head_width else [], (1, WIDTH)),
        "relative_attention_num_buckets": (4, DISTANCES),
        "relative_attention_max_distance": (4, DISTANCES),
    }
    # transformers takes BERT's names for those of every architecture.
    for stack in (Stack(), *entry.stacks):
        bounds |= {stack.layers: (1, LAYERS), stack.heads: (1, HEADS), stack.neurons: (1, NEURONS)}
    return bounds
