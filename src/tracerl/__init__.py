"""Post-training of masked diffusion language models that can be rerun, scheduled and queried."""
