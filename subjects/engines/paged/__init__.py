"""What engines have in common whose KV lies in blocks that block tables list. Knows no engine."""
