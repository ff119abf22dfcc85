"""The training loop that learned masks and distillation share."""
