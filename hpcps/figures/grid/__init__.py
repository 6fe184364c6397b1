"""A study of rules under attacks: heat maps, a ranking, and what each rule let into the model."""
