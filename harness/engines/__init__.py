"""Released engines: fetching one, and its trial in a process of its own."""
