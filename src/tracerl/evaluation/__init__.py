"""Published data sets, evaluation and its metrics."""
