"""Trainers' own interfaces over the buffer: what their options name to keep their groups here."""
