"""Jobs drawn at random over every field of the contract, each held against its judge: `python -m tests.draw --minutes 10`.

cases/drawn_fields.yaml says how often each field is given, and of what values; cases/random_models.yaml what small models may be.
"""
