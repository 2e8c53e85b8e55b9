"""The historical bugs: a file of entries per family, their catalogue, and switching them on.

An entry says what differs from what is right and where it was seen. Which property must see a
bug on which runner is not said here.
"""
