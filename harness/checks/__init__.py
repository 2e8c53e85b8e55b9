"""The properties, one file each, their table, and the code that plays and checks schedules."""
