"""What is kept: cases that anyone can replay, and the records of runs, each with one schema."""
