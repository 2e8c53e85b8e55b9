"""The sanitizer: checks KV caches from inside an engine's process.

Imports torch and the standard library only. Runs on Python 3.10 and torch 2.9 or newer.
"""
