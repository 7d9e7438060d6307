"""The one sampler."""
