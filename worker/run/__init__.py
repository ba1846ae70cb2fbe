"""A run is one attempt after the other: what a job runs, where, and with whose permit. No permit is
held between two attempts."""
