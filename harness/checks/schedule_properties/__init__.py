"""The properties of whole schedules, one file each."""
