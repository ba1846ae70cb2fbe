"""What every HTTP server of Penstock has: a guard, a way to be served, and figures."""
