"""The buffer's HTTP face: slime's endpoints and Penstock's."""
