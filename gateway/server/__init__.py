"""The gateway over HTTP: what agents speak to, and what opens and finalizes their sessions."""
