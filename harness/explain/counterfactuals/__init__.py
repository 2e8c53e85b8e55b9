"""What one changed thing makes of a forward: whether the violated property then holds."""
