"""Classification of texts, or pairs of texts, with an encoder."""
