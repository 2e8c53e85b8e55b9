"""Properties of the KV sanitizer, apart from those of its parts."""
