"""Session sandboxes of clouds, one file each on the cloud's own SDK, which is an optional extra."""
