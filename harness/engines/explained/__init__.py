"""From a shrunk case of an engine to what its page shows: its steps, static inputs and slots."""
