"""The gateway is served here over HTTP: to agents, and under another key to those who open and
finalize sessions."""
