"""A client of sandboxes that speak Sandbox Fusion's contract. A sandbox's failure is never a
program's result."""
