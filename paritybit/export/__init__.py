"""Turns a case of the sanitizer into a test for the engine's own suite.

The standalone form imports the engine alone. `templates` has one file per engine: Python, with
`@NAME@` for what the case fills in. A line that ends in `#: FEATURES` is left out of a test that
lacks one of these features, or has one that is `not` wanted.
"""
