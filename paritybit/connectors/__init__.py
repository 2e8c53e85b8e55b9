"""Connectors. Each runs in the process of one engine, and reports its facts to the sanitizer."""
