"""The command line: what it takes, and what it prints."""
