"""The run, step by step: what opens, scores, chooses, prunes, recovers, saves and exports."""
