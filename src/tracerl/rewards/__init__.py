"""Rewards: `verify` decides whether a response is correct, `judges` score responses and steps."""
