"""What scoring costs, against one plain forward and backward pass over the same rows."""
