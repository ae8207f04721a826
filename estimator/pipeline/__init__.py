"""From a job to its answer: defaults, simulation, verdict, time and cost, and the words around them."""
