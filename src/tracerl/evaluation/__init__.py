"""Benchmark evaluation."""
