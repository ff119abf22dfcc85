"""How fast artifacts are beside what else one would serve the same model with."""
