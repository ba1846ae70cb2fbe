"""A server that sandboxes may want to reach."""

from tests.jail.reached import trainer as trainer
