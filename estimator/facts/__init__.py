"""Folders of facts, found by their names as people spell them; a fact with its source."""
