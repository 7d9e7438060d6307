"""Trajectories as Parquet and SQL."""
