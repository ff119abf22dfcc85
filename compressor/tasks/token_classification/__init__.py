"""Classification of tokens: entities, parts of speech."""
