"""A training watched from within: what was predicted beside what was measured, in whatever the training logs to."""
