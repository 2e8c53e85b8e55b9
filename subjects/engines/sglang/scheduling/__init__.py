"""The engine's own host code: its requests, batches and prefix cache, told what our world does."""
