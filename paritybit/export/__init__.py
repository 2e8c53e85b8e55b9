"""Turns a case of the sanitizer into a test for the engine's own suite.

The standalone form imports only the engine. `templates` has one Python file per engine, with
`@NAME@` in place of the values of a case. A line that ends in `#: FEATURES` is omitted if the test
lacks one of these features, or has one that is marked with `not`.
"""
