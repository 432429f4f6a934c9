"""The command `minimq`: one file for each noun. Commands import what they need when they run, so help stays fast."""
