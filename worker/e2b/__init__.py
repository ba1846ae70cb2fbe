"""Session sandboxes in E2B's protocol: its SDKs work with Penstock's by two variables."""
