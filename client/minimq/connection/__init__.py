"""The connection of clients to a cluster: one event loop, its channels, the routes, and calls to servers."""
