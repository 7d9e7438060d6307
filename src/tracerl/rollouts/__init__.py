"""Judged responses: the step between rewards and training."""
