"""What is known and what a model is made of, as rows; the JSON Schema of every question and answer."""
