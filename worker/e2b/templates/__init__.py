"""Templates that clients build on this machine's images: steps run in sessions, layer by layer."""
