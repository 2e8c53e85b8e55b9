"""Planted faults: small mistakes in the build that its test suite must catch, and the proof.

`fault` says what a fault is, the files `of_*` are the table, by the part of the house that a
fault is planted in, and `run` plants them one at a time. `README.md` is what came of it.
"""
