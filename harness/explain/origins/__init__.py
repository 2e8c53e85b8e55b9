"""Where what an op was given came from: a table, a list, an argument, an output that was kept."""
