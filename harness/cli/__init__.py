"""The commands, a file for each: with the parser they are where harness and reports meet."""
