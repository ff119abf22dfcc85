"""How much quality each method preserves: every scoring method with every recovery."""
