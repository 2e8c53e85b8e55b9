"""The properties: a file for each, their table, and how schedules are played and judged."""
