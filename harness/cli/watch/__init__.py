"""The command `watch` and the other commands of the sanitizer."""
