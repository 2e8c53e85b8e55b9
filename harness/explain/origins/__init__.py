"""Where an op's wrong input came from: a table, a list, an argument, or a kept output."""
