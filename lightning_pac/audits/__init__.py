"""Whether the best known attack agrees with the bound."""
