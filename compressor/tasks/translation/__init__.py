"""Translation of sentences with an encoder-decoder model."""
