"""Which method keeps how much quality: every way of choosing heads with every way of repair."""
