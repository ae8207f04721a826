"""What a run costs: price lists, money and electricity."""
