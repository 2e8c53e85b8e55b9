"""Properties of the exploration of allocators and prefix caches."""
