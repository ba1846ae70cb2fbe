"""A job that judges reads its cases, tries them one by one or at once, and reports."""
