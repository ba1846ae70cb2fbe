"""Sandboxes that speak Sandbox Fusion's contract, as a client."""
