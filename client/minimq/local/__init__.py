"""A whole cluster as child processes of this one."""
