"""How a step is spread over ranks: strategies, what each shards and exchanges, and the schedules of pipelines."""
