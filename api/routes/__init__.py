"""The service's routes, by what they are for."""
