"""Session sandboxes in E2B's protocol: its SDKs work against ours by two variables."""
