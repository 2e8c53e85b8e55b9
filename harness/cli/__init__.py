"""The commands, one file each, and the parser. They use both harness and reports."""
