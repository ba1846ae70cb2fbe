"""A reaper ends sandboxes whose owners are gone. It never forgets one that could not be ended."""
