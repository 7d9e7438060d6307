"""Views, likelihoods, losses, advantages."""
