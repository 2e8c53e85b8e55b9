"""Contract mutants: each static buffer got wrong in each way, hunted and told."""
