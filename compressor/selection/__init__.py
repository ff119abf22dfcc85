"""Which units an artifact keeps: what a budget may ask of a run, and what it chooses."""
