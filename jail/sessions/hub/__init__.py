"""The process that keeps all session sandboxes of one user on this machine."""
