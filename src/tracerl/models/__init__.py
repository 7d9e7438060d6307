"""The one transformer, its masks and its checkpoints."""
