"""A task's policy says how old samples may be, and slots keep it: no more groups are made than it
admits."""
