"""From a violation to its cause: what differed first, which index led there, who left it."""
