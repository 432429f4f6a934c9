"""The controller: which replica of each broker is the master."""
