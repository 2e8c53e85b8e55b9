"""From a violation to its cause: what differed first, and which index or value led there."""
