"""SGLang's rules: what it leaves free of a GPU, and what its pools of weights, tokens and states make of the rest."""
