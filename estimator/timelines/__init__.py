"""Live bytes in the course of a step, tensor by tensor: as JSON, a picture, a trace, and a snapshot for torch's viewer."""
