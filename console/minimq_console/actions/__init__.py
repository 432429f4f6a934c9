"""The actions of the console, one file for each or a few that belong together."""
