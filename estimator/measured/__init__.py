"""What people have measured of a job's memory, lined up with what is predicted, and what would explain the difference."""
