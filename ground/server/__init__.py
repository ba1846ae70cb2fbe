"""The embedded server: a private Valkey or Redis, kept alive next to its users."""
