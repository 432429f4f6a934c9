"""The broker: the store, the services that clients call, and their options."""
