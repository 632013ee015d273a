"""How faithful a pair is: tokens, a torch reference, comparisons that don't depend on scale, gates."""
