"""Operations on a cluster, each declared once: commands, forms and the JSON API derive from the methods."""
