"""As much of verifiers as our adapter and its page use: a stand-in, for tests without it."""
