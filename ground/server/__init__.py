"""The embedded server is a private Valkey or Redis. It lives next to its users, and ends with its
owner, however that ends."""
