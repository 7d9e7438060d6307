"""Prefect over the DVC graph: when to run, how often, and what to watch. What is fresh, and how a
stage is run, stays DVC's."""
