"""What a caller sees: jobs, answers, their rows and errors, and the units they are in."""
