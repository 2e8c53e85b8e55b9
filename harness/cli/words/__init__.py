"""Help texts, the parser class, and the types of options."""
