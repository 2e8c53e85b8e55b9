"""Explores sglang's unified prefix cache and hybrid allocator.

`world` builds the engine's objects, `scheduler` performs a step like the engine's scheduler,
`tree` reads the prefix cache and identifies a state, and `machine` has the actions and the laws.
"""
