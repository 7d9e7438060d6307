"""Judges of whole responses and of single steps: by rule, by a local model, by a server."""
