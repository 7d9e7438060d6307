"""The params file as frozen records, a module for each of its sections."""
