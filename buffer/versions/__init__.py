"""How old samples may be: a task's policy, the slots that keep it, and what items report."""
