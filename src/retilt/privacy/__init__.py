"""Units, budgets, sensitivities, noise, and the answers that may leave."""
