"""Contract mutants: each static buffer is broken in each way, and a property must detect it."""
