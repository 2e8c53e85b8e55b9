"""Engines of others on the command line: trials, soaks, bisections and comparisons of them."""
