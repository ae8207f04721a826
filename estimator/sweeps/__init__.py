"""One job over whole grids of fields: a tape traced once as a program, evaluated with NumPy."""
