"""The queues and their shares, for people."""
