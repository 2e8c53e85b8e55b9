"""The historical bugs: one file per family, their catalogue, and code to switch them on.

An entry says how a bug differs from correct code, and where it was seen. The properties that must
detect it are listed in `harness/checks/expectations.py`.
"""
