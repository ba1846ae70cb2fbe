"""Trainers have rows of sessions in their own shapes by these. What is masked stays masked."""
