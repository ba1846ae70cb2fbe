"""The session sandboxes of this machine, for people."""
