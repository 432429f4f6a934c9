"""The features: one package for each, with all that the broker has of it."""
