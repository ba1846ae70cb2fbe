"""What Penstock's adapter, its tests and its page take of uni-agent (6f4a7c9)."""
