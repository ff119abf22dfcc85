"""The training loop of learned masks and distillation."""
