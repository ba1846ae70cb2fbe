"""Many machines with E2B's face as one: whose a sandbox is, where there is room, and forwarding."""
