"""Which setting fits a budget: a model read, its settings searched, their speeds, a script that trains with the chosen one."""
