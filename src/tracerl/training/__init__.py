"""The one optimisation loop and what runs on it."""
