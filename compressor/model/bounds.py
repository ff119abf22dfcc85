"""The most that a checkpoint may ask for, checked before anything is built.

Several times what the largest models of the supported architectures have; docs/checkpoints.md lists
them.
"""

from __future__ import annotations

LAYERS, HEADS, WIDTH, NEURONS = 1024, 1024, 65_536, 1_048_576
VOCABULARY, POSITIONS, TYPES, LABELS = 16_777_216, 65_536, 65_536, 65_536
COMPUTED_POSITIONS = 8_388_608  # numbers in a table of sinusoidal positions, which are computed
BOUNDS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("num_hidden_layers", "encoder_layers", "decoder_layers", "n_layers", "num_layers"),
        (1, LAYERS),
    ),
    **dict.fromkeys(
        ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "n_heads"),
        (1, HEADS),
    ),
    **dict.fromkeys(("hidden_size", "d_model", "dim", "embedding_size"), (1, WIDTH)),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), (1, NEURONS)
    ),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size"), (1, VOCABULARY)),
    "max_position_embeddings": (1, POSITIONS),
    "type_vocab_size": (1, TYPES),
    "num_labels": (1, LABELS),
    "_num_labels": (1, LABELS),
}
