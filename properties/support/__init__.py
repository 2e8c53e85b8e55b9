"""What several tests share: tables of expected facts, worlds and helpers. No test stands here."""
