"""Who does the work where: a plan, and runners that fold and map it."""
