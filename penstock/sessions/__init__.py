"""People use the session sandboxes of this machine here: a terminal in one, and a list."""
