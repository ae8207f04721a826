"""What "model" may mean: a published name, a size, a config.json, weight files, a hub id, a mapping."""
