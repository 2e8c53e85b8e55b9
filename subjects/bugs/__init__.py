"""The catalogue: every historical bug as a named, documented difference from what is right."""
