"""What at least two roles of minimq need: values, the batch format, errors, names and the plumbing of calls."""
