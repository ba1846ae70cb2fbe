"""As much of NeMo Gym as our adapter and its page use: a stand-in, for tests without it."""
