"""Where the queues of a topic are: asked of the name servers, watched, and kept."""
