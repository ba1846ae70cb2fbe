"""The worker runs many jobs at once; its files are in the order of a job's life. Every job that it
claims ends, or is given back."""
