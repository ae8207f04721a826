"""Questions over many jobs: the headline, the smallest change that would fit, budgets."""
