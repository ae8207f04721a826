"""What an answer says beside its numbers, as values: what it takes for granted, warns of, suggests, and leaves out."""
