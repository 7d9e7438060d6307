"""Verifiers, one per task kind, the processes that they run in, and the parts of a reward."""
