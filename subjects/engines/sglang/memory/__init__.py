"""The engine's own pools, request table and allocator, and how they follow a world."""
