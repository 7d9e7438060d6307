"""The papers' claims on small models: a table of cells, the pipeline made of it, and what its
numbers say. See docs/replication.md."""
