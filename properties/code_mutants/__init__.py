"""Small mistakes in the code of `subjects/`, made by rule and sampled: the harness must see each.

`make code-mutants` makes them, plays clean trials on each, and prints the score. What survives
stands in `survivors.json` with the reason why it cannot matter.
"""
