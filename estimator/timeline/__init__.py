"""Live bytes in the course of a step, tensor by tensor: as JSON, as a picture, as a trace, and as a snapshot for torch's viewer."""
