"""The features: one package for each, with all that the client has of it."""
