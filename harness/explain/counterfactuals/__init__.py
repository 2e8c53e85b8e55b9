"""Whether the violated property holds if one thing in a forward is changed."""
