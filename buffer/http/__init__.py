"""The buffer is served here over HTTP: slime's endpoints and Penstock's. Nothing in a server is
state, so any of them answers."""
